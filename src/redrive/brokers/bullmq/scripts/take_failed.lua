--[[
  Removes jobs from a queue's failed set, those that are there as they were seen. removeJob(KEYS, ARGV) of the package
  stands before this text; it removes a job in whatever state it is.

  KEYS     the queue's: failed repeat
  ARGV[1]  key prefix of the queue
  ARGV[2]  msgpacked list: id, score, timestamp, SHA-1 of data

  Returns one answer per job: 1 removed; 0 it is not there; 2 it is there, and not as it was seen; 3 BullMQ keeps it.
  Another job that has the id by now counts as "not there".
]]
local rcall = redis.call
local function take(seen)
  local id, jobKey = seen[1], ARGV[1] .. seen[1]
  local found = rcall("HMGET", jobKey, "timestamp", "data")
  if not found[1] or found[1] ~= seen[3] then
    return 0
  end
  if rcall("ZSCORE", KEYS[1], id) ~= seen[2] or redis.sha1hex(found[2] or "") ~= seen[4] then
    return 2
  end
  return removeJob({ jobKey, KEYS[2] }, { id, "0", ARGV[1] }) == 1 and 1 or 3
end
local answers = {}
for number, seen in ipairs(cmsgpack.unpack(ARGV[2])) do
  answers[number] = guarded(take, seen)
end
return answers
