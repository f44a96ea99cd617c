--[[
  Registers keys of one queue, each as `registered` says.

  KEYS     the queue's base (no key itself: it names the slot)
  ARGV[1]  msgpacked list: key, digest or "", expires at or 0

  Returns one answer per key: 0 new, 1 known, 2 known with another digest.
]]
local base = KEYS[1]
local answers = {}

local function register(name, digest, expiresAt)
  local record = read(base .. "k:" .. name)
  local after = { "R", 0, 0, 0, false, false, false, false, now, false, false }
  if digest ~= "" then
    after[8] = digest
  end
  if expiresAt > 0 then
    after[7] = expiresAt
  end
  if record then
    after[4] = record[4]
    if not isExpired(record) then
      if record[1] ~= "X" then
        return (digest ~= "" and record[8] and record[8] ~= digest) and 2 or 1
      end
      after[3] = record[3] + 1
    end
  end
  keep(base, name, record, after)
  return 0
end

for number, given in ipairs(cmsgpack.unpack(ARGV[1])) do
  answers[number] = register(given[1], given[2], given[3])
end
write(base)
return answers
