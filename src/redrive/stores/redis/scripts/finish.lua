--[[
  Ends claims of one queue, each as `ended` says.

  KEYS     the queue's base (no key itself: it names the slot)
  ARGV[1]  msgpacked list of ends: key, token, state, expires at or 0

  Returns one answer per end: 1 the record moved, 0 it may not.
]]
local base = KEYS[1]
local answers = {}

local function finish(name, token, to, expiresAt)
  local record = read(base .. "k:" .. name)
  if not record or record[4] ~= token then
    return 0
  end
  if record[1] ~= "P" and not (record[1] == "F" and to == "X") then
    return 0
  end
  local after = { to, record[2], record[3], token, false, false, false, record[8], now, false, false }
  if expiresAt > 0 then
    after[7] = expiresAt
  end
  if to == "R" then
    after[2] = math.max(0, record[2] - 1)
    after[1] = after[2] > 0 and "F" or "R"
    after[10], after[11] = record[10], record[11]
  end
  keep(base, name, record, after)
  return 1
end

for number, claim in ipairs(cmsgpack.unpack(ARGV[1])) do
  answers[number] = finish(claim[1], claim[2], claim[3], claim[4])
end
write(base)
return answers
