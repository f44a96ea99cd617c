--[[
  What the scripts of redrive share. Stands before each of them.
]]

-- The server's clock in whole milliseconds.
local function serverNow()
  local time = redis.call("TIME")
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- What holds until the end of this call, by key: see `once`.
local known = {}

-- For what BullMQ's scripts ask, or do, with each job of a batch alike (see `hoisting.py`): `redis.call`, once a call.
-- So it is with the queue's settings, once `settings` has read them; with an answer that nothing has fallen due; with
-- the marker, and the trimming of the events.
local function once(command, key, first, ...)
  local answer = known[key]
  if command == "HMGET" and answer then
    return answer
  elseif command == "HGET" and answer and answer[6] and first == "opts.maxLenEvents" then
    return answer[6]
  elseif command == "XTRIM" or (command == "ZADD" and first == 0) then
    known[key] = answer or redis.call(command, key, first, ...)
    return known[key]
  elseif command == "ZRANGEBYSCORE" then
    answer = answer or redis.call(command, key, first, ...)
    known[key] = #answer == 0 and answer or nil
    return answer
  end
  return redis.call(command, key, first, ...)
end

-- The settings of a queue: paused, concurrency, max, duration (as BullMQ's scripts ask for them), version.
local function settings(metaKey)
  local meta = redis.call("HMGET", metaKey, "paused", "concurrency", "max", "duration", "version", "opts.maxLenEvents")
  known[metaKey] = meta
  return meta
end

-- Where a job that can run now is put. BullMQ 5 renames "wait" to "paused" while a queue is paused, and renames it back
-- over whatever "wait" holds by then; BullMQ 6 leaves the jobs where they are, and takes in what "paused" holds.
local function targetFor(isPaused, version, waitKey, pausedKey)
  if isPaused then
    local isOld = type(version) == "string" and string.match(version, "^bullmq:[1-5]%.")
    if isOld or redis.call("EXISTS", pausedKey) == 1 then
      return pausedKey
    end
  end
  return waitKey
end

local function targetOf(metaKey, waitKey, pausedKey)
  local meta = redis.call("HMGET", metaKey, "paused", "version")
  return targetFor(meta[1], meta[2], waitKey, pausedKey)
end

-- One job of a batch: an error is its answer and leaves the others alone.
local function guarded(step, ...)
  local ok, answer = pcall(step, ...)
  if ok then
    return answer
  end
  local text = type(answer) == "table" and answer["err"] or tostring(answer)
  return { err = text }
end

-- Whether nothing may be handed out: the queue is paused, or as many run as it allows.
local function isHeld(metaKey, activeKey)
  local meta = redis.call("HMGET", metaKey, "paused", "concurrency")
  if meta[1] then
    return true
  end
  return meta[2] and redis.call("LLEN", activeKey) >= tonumber(meta[2])
end

-- One more element in a JSON array that is kept as text.
local function appended(text, element)
  if text and #text > 2 then
    return string.sub(text, 1, -2) .. "," .. element .. "]"
  end
  return "[" .. element .. "]"
end

-- A job in hand has a place that virtual time has reached. Places that moved back meanwhile did not move it.
local function keepPlaceInReach(base, jobKey)
  local kept = redis.call("HMGET", jobKey, "rdp", "priority")
  if kept[1] then
    local now = tonumber(redis.call("HGET", base .. "redrive:turns", "now")) or 1
    if (tonumber(kept[2]) or 0) > now then
      redis.call("HSET", jobKey, "priority", now)
    end
  end
end

-- Back to where it came from, before all that waits there: nobody is to lose its place because a worker died.
local function putInFront(keys, id, jobKey)
  keepPlaceInReach(string.sub(jobKey, 1, #jobKey - #id), jobKey)
  local priority = tonumber(redis.call("HGET", jobKey, "priority")) or 0
  if priority > 0 then
    redis.call("ZADD", keys.prioritized, priority * 0x100000000, id)
  else
    redis.call("RPUSH", targetOf(keys.meta, keys.wait, keys.paused), id)
  end
  if not isHeld(keys.meta, keys.active) then
    redis.call("ZADD", keys.marker, 0, "0")
  end
end
