--[[
  Prolongs claims of one queue, each as `renewed` says.

  KEYS     the queue's base (no key itself: it names the slot)
  ARGV[1]  lease, ms
  ARGV[2]  msgpacked list: key, token

  Returns one answer per claim: 1 it holds again, 0 it was lost.
]]
local base = KEYS[1]
local answers = {}
for number, claim in ipairs(cmsgpack.unpack(ARGV[2])) do
  local record = read(base .. "k:" .. claim[1])
  answers[number] = 0
  if record and record[4] == claim[2] and record[1] == "P" then
    record[6] = now + tonumber(ARGV[1])
    keep(base, claim[1], record, record)
    answers[number] = 1
  end
end
write(base)
return answers
