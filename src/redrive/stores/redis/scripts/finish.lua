--[[
  Ends claims of one queue, each as `ended` says.

  KEYS     the queue's base (no key itself: it names the slot)
  ARGV[1]  msgpacked flat list of ends: key, token, state, expires at or 0

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

local ends = cmsgpack.unpack(ARGV[1])
for place = 1, #ends, 4 do
  answers[#answers + 1] = finish(ends[place], ends[place + 1], ends[place + 2], ends[place + 3])
end
write(base)
return answers
