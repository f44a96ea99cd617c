--[[
  Claims keys of one queue, each as `judge` says.

  KEYS     the queue's base (no key itself: it names the slot)
  ARGV[1]  owner
  ARGV[2]  lease, ms
  ARGV[3]  msgpacked list of owners that are over
  ARGV[4]  msgpacked list of keys
  ARGV[5]  mark of this call: a call whose answer was lost is sent again and told the same

  Returns {server's ms, answer, ...}; an answer is {token, attempts, cycle, lost worker, lost at}, {lease until, owner}
  where it is in progress, or 0 where it is processed.
]]
local base, owner, lease = KEYS[1], ARGV[1], tonumber(ARGV[2])
local gone = {}
for _, name in ipairs(cmsgpack.unpack(ARGV[3])) do
  gone[name] = true
end
local takenHere = {}
local answers = { now }

local function acquired(record)
  if record[10] then
    return { record[4], record[2], record[3], record[10], record[11] }
  end
  return { record[4], record[2], record[3] }
end

local function judge(name, mark)
  local record = read(base .. "k:" .. name)
  local after = { "P", 1, 0, 1, owner, now + lease, false, false, now, false, false, mark }
  if record and isExpired(record) then
    after[4] = record[4] + 1
  elseif record then
    if record[1] == "D" then
      return 0
    end
    if record[1] == "P" and record[12] == mark then
      return acquired(record)
    end
    local isOver = gone[record[5]] and not takenHere[name]
    if record[1] == "P" and record[6] and record[6] > now and not isOver then
      return { record[6], record[5] or "" }
    end
    after[4] = record[4] + 1
    after[8] = record[8]
    if record[1] == "X" then
      after[3] = record[3] + 1
    else
      after[2] = record[2] + 1
      after[3] = record[3]
      after[10], after[11] = record[10], record[11]
      if record[1] == "P" then
        after[10], after[11] = record[5] or "", record[9]
      end
    end
  end
  keep(base, name, record, after)
  takenHere[name] = true
  return acquired(after)
end

for number, name in ipairs(cmsgpack.unpack(ARGV[4])) do
  answers[number + 1] = judge(name, ARGV[5] .. "." .. number)
end
write(base)
return answers
