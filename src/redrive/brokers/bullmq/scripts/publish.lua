--[[
  Adds jobs to one queue, each as BullMQ's own add scripts do, with redrive's fields written in the same step: a worker
  never sees a job without them.

  The scripts of the package stand before this text as functions of (KEYS, ARGV): addStandardJob, addDelayedJob,
  addPrioritizedJob.

  KEYS     the queue's: wait paused meta id completed delayed active events marker prioritized pc
  ARGV[1]  key prefix of the queue
  ARGV[2]  msgpacked list of jobs: id, name, data, options, delay until (ms of the caller's clock, 0: at once),
           priority, flat list of fields to set, mark of this publish, group of its tenant
  ARGV[3]  the caller's clock, ms
  ARGV[4]  turns between tenants, see turns.lua: each job's priority is its place then

  An id that a job has already is given a suffix (two copies of a message are two jobs), unless that job carries the
  mark: then this very publish was sent before, and its answer was lost. A job that has failed and was kept makes room
  for its message when that is sent again: a redrive runs under the id it had. One that redrive neither made nor gave up
  does not: it may be another message, and nobody has its letter. A number that the queue has not given yet is left to
  it.

  Returns one answer per job: its id, or {error}.
]]
local rcall = redis.call
local waitKey, pausedKey, metaKey, idKey, completedKey = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local delayedKey, activeKey, eventsKey, markerKey, prioritizedKey = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local pcKey = KEYS[11]
local prefix = ARGV[1]
local skew = serverNow() - tonumber(ARGV[3])
local meta = settings(metaKey)
local target = targetFor(meta[1], meta[5], waitKey, pausedKey)
local turns = openTurns(prefix, ARGV[4])

local function hasMadeRoom(id)
  local found = rcall("HMGET", prefix .. id, "rd", "rdl", "finishedOn")
  local isKnown = found[1] or (found[2] and found[2] == found[3])
  if not isKnown or rcall("ZREM", prefix .. "failed", id) == 0 then
    return false
  end
  rcall("DEL", prefix .. id)
  for _, part in ipairs({ "logs", "dependencies", "processed", "failed", "unsuccessful" }) do
    rcall("DEL", prefix .. id .. ":" .. part)
  end
  return true
end

-- The id to use, or nil where this publish has added it before.
local function freeId(id, mark)
  local candidate, number = id, 1
  local isAhead = string.match(id, "^[1-9]%d*$") and tonumber(id) > (tonumber(rcall("GET", idKey)) or 0)
  while rcall("EXISTS", prefix .. candidate) == 1 or (isAhead and number == 1) do
    if rcall("HGET", prefix .. candidate, "rdm") == mark then
      return nil, candidate
    end
    if hasMadeRoom(candidate) then
      break
    end
    number = number + 1
    candidate = id .. "~" .. number
  end
  return candidate, candidate
end

local function add(job)
  local id, known = freeId(job[1], job[8])
  if not id then
    return known
  end
  local now = serverNow()
  local due = job[5]
  local options = job[4]
  local delay = 0
  if due > 0 then
    delay = math.max(0, due + skew - now)
  end
  if delay > 0 then
    options["delay"] = delay
  end
  -- Nil is nothing in Lua's lists: the empty places at the end (parent, repeat, deduplication) are simply not there.
  local priority = job[6]
  if turns then
    priority = placing().nextPlace(turns, job[9], delay == 0)
    options["priority"] = priority
  end
  local args = cmsgpack.pack({ prefix, id, job[2], now })
  local argv = { args, job[3], cmsgpack.pack(options), now }
  local added
  if delay > 0 then
    added = addDelayedJob({ markerKey, metaKey, idKey, delayedKey, completedKey, eventsKey }, argv)
  elseif priority > 0 then
    added = addPrioritizedJob(
      { markerKey, metaKey, idKey, prioritizedKey, delayedKey, completedKey, activeKey, eventsKey, pcKey }, argv)
  else
    added = addStandardJob(
      { target, pausedKey, metaKey, idKey, completedKey, delayedKey, activeKey, eventsKey, markerKey }, argv)
  end
  if type(added) == "number" then
    return redis.error_reply("ERR BullMQ refused the job: " .. added)
  end
  if turns then
    rcall("HSET", prefix .. id, "rdm", job[8], "rdp", job[6], unpack(job[7]))
  else
    rcall("HSET", prefix .. id, "rdm", job[8], unpack(job[7]))
  end
  return id
end

if turns then
  catchUp(turns, 1)
  rebase(turns)
end
local answers = {}
for number, job in ipairs(cmsgpack.unpack(ARGV[2])) do
  answers[number] = guarded(add, job)
end
if turns then
  closeTurns(turns)
end
return answers
