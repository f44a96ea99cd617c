--[[
  What the scripts of redrive share. Stands before each of them.
]]

-- The server's clock in whole milliseconds.
local function serverNow()
  local time = redis.call("TIME")
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- Where a job that can run now is put. BullMQ 5 renames "wait" to "paused" while a queue is paused, and renames it back
-- over whatever "wait" holds by then; BullMQ 6 leaves the jobs where they are, and takes in what "paused" holds.
local function targetOf(metaKey, waitKey, pausedKey)
  local meta = redis.call("HMGET", metaKey, "paused", "version")
  if meta[1] then
    local isOld = type(meta[2]) == "string" and string.match(meta[2], "^bullmq:[1-5]%.")
    if isOld or redis.call("EXISTS", pausedKey) == 1 then
      return pausedKey
    end
  end
  return waitKey
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
