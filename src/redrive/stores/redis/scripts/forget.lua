--[[
  Takes claims of one queue back whose claimer never heard that it has them: as `released` says, they cost no attempt.

  KEYS     the queue's base (no key itself: it names the slot)
  ARGV[1]  mark of the call that made them
  ARGV[2]  msgpacked list of its keys, in its order

  Returns how many there were.
]]
local base = KEYS[1]
local count = 0
for number, name in ipairs(cmsgpack.unpack(ARGV[2])) do
  local record = read(base .. "k:" .. name)
  if record and record[1] == "P" and record[12] == ARGV[1] .. "." .. number then
    local after = { "R", math.max(0, record[2] - 1), record[3], record[4], false, false, record[7], record[8], now }
    after[1] = after[2] > 0 and "F" or "R"
    after[10], after[11] = record[10], record[11]
    keep(base, name, record, after)
    count = count + 1
  end
end
write(base)
return count
