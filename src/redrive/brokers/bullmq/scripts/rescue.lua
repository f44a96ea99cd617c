--[[
  Puts back what redrive's workers had in hand and have lost. BullMQ has no script for that: its own sweep
  (moveStalledJobsToWait) looks every 30 s, twice, and fails a job that stalled more than once.

  A job is put back, before all that waits, its start counted as lost (stc),
    - at once, where it has no lock and redrive's worker was the last to have it: its lease is over;
    - where its lock is of a worker of redrive that has given no sign of life for so long, and was found missing
      before: a server that stood still, or a fleet that comes back with it, is not taken for dead.
  Jobs of Node's workers are left to BullMQ's sweep: their locks are respected.

  KEYS     the queue's: wait active prioritized events stalled paused meta marker workers suspects
  ARGV[1]  key prefix of the queue
  ARGV[2]  ms a worker has to be missing
  ARGV[3]  locks to take for lost at once: a msgpacked list of tokens whose holder never heard that it holds them, or
           "token id" of single jobs it could not give back; those jobs' starts are given back

  Returns how many were put back.
]]
local rcall = redis.call
local prefix = ARGV[1]
local now = serverNow()
local keys = {
  wait = KEYS[1], active = KEYS[2], prioritized = KEYS[3], paused = KEYS[6], meta = KEYS[7], marker = KEYS[8],
}
local unheard = {}
for _, token in ipairs(cmsgpack.unpack(ARGV[3])) do
  unheard[token] = true
end
local active = rcall("LRANGE", keys.active, 0, -1)
if #active == 0 then
  return 0
end
local alive = {}
for _, member in ipairs(rcall("ZRANGEBYSCORE", KEYS[9], now, "+inf")) do
  alive[string.match(member, "^([^|]*)")] = true
end

local verdicts = {}
local function isDead(instance)
  if alive[instance] then
    return false
  end
  if verdicts[instance] == nil then
    local since = tonumber(rcall("HGET", KEYS[10], instance))
    if not since then
      rcall("HSET", KEYS[10], instance, now)
    end
    verdicts[instance] = since ~= nil and now - since >= tonumber(ARGV[2])
  end
  return verdicts[instance]
end

local function isLost(id, jobKey)
  local token = rcall("GET", jobKey .. ":lock")
  if token then
    local instance = string.match(token, "^redrive:([^:]+):")
    local isUnheard = unheard[token] or unheard[token .. " " .. id]
    return isUnheard or (instance and isDead(instance)), isUnheard
  end
  local by = rcall("HGET", jobKey, "pb")
  return type(by) == "string" and string.sub(by, 1, 8) == "redrive:"
end

local function entryOf(jobKey)
  local job = rcall("HMGET", jobKey, "atm", "stc", "pb", "processedOn", "rdh")
  local attempt = (tonumber(job[1]) or 0) + (tonumber(job[2]) or 0) + 1
  local worker = type(job[3]) == "string" and string.gsub(job[3], "^redrive:", "") or ""
  local entry = cjson.encode({ outcome = "interrupted", worker = worker })
  entry = string.sub(entry, 1, -2) .. string.format(',"attempt":%d,"at":%d}', attempt, tonumber(job[4]) or now)
  return appended(job[5], entry)
end

local count = 0
for _, id in ipairs(active) do
  local jobKey = prefix .. id
  local lost, isUnheard = isLost(id, jobKey)
  if lost and rcall("LREM", keys.active, 1, id) > 0 then
    rcall("DEL", jobKey .. ":lock")
    rcall("SREM", KEYS[5], id)
    if rcall("EXISTS", jobKey) == 1 then
      if not isUnheard then
        rcall("HSET", jobKey, "rdh", entryOf(jobKey))
        rcall("HINCRBY", jobKey, "stc", 1)
        rcall("XADD", KEYS[4], "*", "event", "stalled", "jobId", id)
      end
      putInFront(keys, id, jobKey)
      rcall("XADD", KEYS[4], "*", "event", "waiting", "jobId", id, "prev", "active")
      count = count + 1
    end
  end
end
return count
