--[[
  Deletes expired records of one queue.

  KEYS     the queue's base (no key itself: it names the slot)
  ARGV[1]  at most how many

  Returns how many went.
]]
local base = KEYS[1]
local names = rcall("ZRANGEBYSCORE", base .. "x", "-inf", now, "LIMIT", 0, tonumber(ARGV[1]))
for _, name in ipairs(names) do
  rcall("DEL", base .. "k:" .. name)
  rcall("ZREM", base .. "x", name)
end
return #names
