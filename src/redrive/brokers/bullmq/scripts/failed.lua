--[[
  Shows jobs of a queue's failed set whole, oldest first. BullMQ's getJobs tells neither what a job is a part of, nor
  where a page ended once jobs before it are gone.

  KEYS     the queue's: failed
  ARGV[1]  key prefix of the queue
  ARGV[2]  at most how many
  ARGV[3]  bytes of fields after which no more are added
  ARGV[4]  how many are looked at, at most
  ARGV[5]  score and
  ARGV[6]  id of the last one that was looked at before; "" from the start

  Left out, and counted: those that redrive's own workers gave up (`rdl` is when), since their letters are stored;
  those with a parent or children, which their flow still reads; and ids without a job.

  Returns {score, id (both "" at the end), own, with a parent, with children, without a job, {id, score, fields}, ...}
]]
local rcall = redis.call
local prefix, limit, maxBytes = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local start = 0
if ARGV[5] ~= "" then
  start = rcall("ZCOUNT", KEYS[1], "-inf", "(" .. ARGV[5])
  if rcall("ZSCORE", KEYS[1], ARGV[6]) == ARGV[5] then
    start = rcall("ZRANK", KEYS[1], ARGV[6]) + 1
  end
end
local shown = { "", "", 0, 0, 0, 0 }
local OWN, PARENT, CHILDREN, NO_JOB = 3, 4, 5, 6
local function leftAs(jobKey)
  local asked = rcall("HMGET", jobKey, "rdl", "finishedOn", "parentKey", "timestamp")
  if not asked[4] then
    return NO_JOB
  elseif asked[1] and asked[1] == asked[2] then
    return OWN
  elseif asked[3] and asked[3] ~= "" then
    return PARENT
  elseif rcall("EXISTS", jobKey .. ":dependencies", jobKey .. ":processed", jobKey .. ":failed",
      jobKey .. ":unsuccessful") > 0 then
    return CHILDREN
  end
  return nil
end
local bytes = 0
local looked = rcall("ZRANGE", KEYS[1], start, start + tonumber(ARGV[4]) - 1, "WITHSCORES")
for at = 1, #looked, 2 do
  local id, score = looked[at], looked[at + 1]
  local why = leftAs(prefix .. id)
  if why then
    shown[why] = shown[why] + 1
  else
    local fields = rcall("HGETALL", prefix .. id)
    for _, each in ipairs(fields) do
      bytes = bytes + #each
    end
    shown[#shown + 1] = { id, score, fields }
  end
  local isLast = at + 1 == #looked and #looked < 2 * tonumber(ARGV[4])
  if not isLast and (at + 1 == #looked or #shown - NO_JOB >= limit or bytes >= maxBytes) then
    shown[1], shown[2] = score, id
    break
  end
end
return shown
