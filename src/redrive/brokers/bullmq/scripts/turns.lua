--[[
  Turns between tenants, as redrive.core.policy.places has them: a job's priority is its place in virtual time. Stands
  before the scripts that place jobs. BullMQ knows nothing like it.

  State, under the queue's own prefix:
    redrive:turns  hash: now (virtual time), by and cursor (while places move back: by how much, and the score up to
                   which they have)
                   and last, run: whose job was started last by redrive, how many in a row
    redrive:served hash: by group, starts by redrive and when the last one was; begun anew at 10 000 groups
    redrive:ends   sorted set: where the next message of a tenant would go, of tenants ahead of virtual time

  Of a job: `rdt` its tenant's group (absent: "-"), `rdp` that it was placed, and the priority it had before.

  While places move back `now` and the ends are moved already, and so are jobs up to the cursor. A job that belongs
  behind the cursor is written where it would have been, and moves with the others.
]]
local LAST_PLACE, UNIT, REBASE_AT, SHIFT = 2097151, 16, 524287, 0x100000000
local MOVED_AT_ONCE, LOOKED_AT, MAX_SERVED = 500, 100, 10000

-- `fair`: msgpacked {batch, steps by group, whether steps can be uneven}; "" where no turns are taken: nil then.
local function openTurns(base, fair)
  if not fair or fair == "" then
    return nil
  end
  local given = cmsgpack.unpack(fair)
  local kept = redis.call("HMGET", base .. "redrive:turns", "now", "by", "cursor")
  local now, by, cursor = tonumber(kept[1]) or 1, tonumber(kept[2]) or 0, tonumber(kept[3]) or 0
  return {
    base = base, key = base .. "redrive:turns", ends = base .. "redrive:ends", none = base .. "redrive:none",
    waiting = base .. "prioritized", batch = given[1], steps = given[2], isUneven = given[3],
    now = now, by = by, cursor = cursor, was = { now, by, cursor },
  }
end

local function closeTurns(turns)
  if turns.now == turns.was[1] and turns.by == turns.was[2] and turns.cursor == turns.was[3] then
    return
  end
  redis.call("ZREMRANGEBYSCORE", turns.ends, "-inf", turns.now)
  redis.call("HSET", turns.key, "now", turns.now, "by", turns.by, "cursor", string.format("%.0f", turns.cursor))
end

-- The place that a score stands for.
local function placeAt(turns, score)
  local place = math.floor(score / SHIFT)
  if turns.by > 0 and score > turns.cursor then
    place = place - turns.by
  end
  return math.max(1, place)
end

local function startedAt(turns, place)
  turns.now = math.max(turns.now, place)
end

-- `places._step`.
local function stepOf(turns, group, place)
  local own = turns.steps[group] or UNIT
  if not turns.isUneven then
    return own
  end
  local least, second = math.huge, math.huge
  local ahead = redis.call("ZRANGEBYSCORE", turns.ends, "(" .. place, "+inf", "LIMIT", 0, LOOKED_AT)
  for _, other in ipairs(ahead) do
    local step = turns.steps[other] or UNIT
    if other ~= group and step < least then
      least, second = step, least
    elseif other ~= group and step < second then
      second = step
    end
  end
  if least == math.huge then
    return own
  end
  local reach = math.max(1, turns.batch * least - 1)
  if own > reach and second > reach then
    return reach
  end
  return own < least and math.max(own, math.ceil((least + 1) / turns.batch)) or own
end

-- Where the next message of this group goes, as it is stored. `isCharged`: the one after it goes behind it.
local function nextPlace(turns, group, isCharged)
  local place = math.max(turns.now, tonumber(redis.call("ZSCORE", turns.ends, group)) or 1)
  if isCharged then
    redis.call("ZADD", turns.ends, math.min(LAST_PLACE, place + stepOf(turns, group, place)), group)
  end
  if turns.by > 0 and place + turns.by > math.floor(turns.cursor / SHIFT) then
    return math.min(LAST_PLACE, place + turns.by)
  end
  return place
end

-- A place for a job that is there, whatever its priority was.
local function placeJob(turns, jobKey)
  local kept = redis.call("HMGET", jobKey, "rdt", "priority", "rdp")
  local place = nextPlace(turns, kept[1] or "-", true)
  redis.call("HSET", jobKey, "priority", place, "rdp", kept[3] or kept[2] or 0)
  return place
end

local function queueJob(turns, id)
  local place = placeJob(turns, turns.base .. id)
  redis.call("ZADD", turns.waiting, place * SHIFT + redis.call("INCR", turns.base .. "pc") % SHIFT, id)
end

-- Starts that nobody told of (Node's workers) have moved virtual time as well: to just before what waits first, and
-- behind everything where nothing waits.
local function catchUp(turns)
  local first = redis.call("ZRANGE", turns.waiting, 0, 0, "WITHSCORES")
  if #first == 0 then
    startedAt(turns, tonumber(redis.call("ZREVRANGE", turns.ends, 0, 0, "WITHSCORES")[2]) or 1)
  elseif redis.call("HEXISTS", turns.base .. first[1], "rdp") == 1 then
    startedAt(turns, placeAt(turns, tonumber(first[2])) - UNIT)
  end
end

local function moveBack(turns, id, score)
  local place = math.max(1, math.floor(score / SHIFT) - turns.by)
  redis.call("ZADD", turns.waiting, place * SHIFT + score % SHIFT, id)
  redis.call("HSET", turns.base .. id, "priority", place)
end

-- One step of moving all places back, once virtual time has come far. In the order of the queue, so that it stays.
local function rebase(turns)
  if turns.by == 0 then
    if turns.now < REBASE_AT then
      return
    end
    redis.call("ZREMRANGEBYSCORE", turns.ends, "-inf", turns.now)
    turns.by, turns.cursor, turns.now = turns.now - 1, 0, 1
    local ends = redis.call("ZRANGE", turns.ends, 0, -1, "WITHSCORES")
    for number = 1, #ends, 2 do
      redis.call("ZADD", turns.ends, tonumber(ends[number + 1]) - turns.by, ends[number])
    end
  end
  local behind = "(" .. string.format("%.0f", turns.cursor)
  local found = redis.call("ZRANGEBYSCORE", turns.waiting, behind, "+inf", "WITHSCORES", "LIMIT", 0, MOVED_AT_ONCE)
  for number = 1, #found, 2 do
    moveBack(turns, found[number], tonumber(found[number + 1]))
  end
  if #found == 0 then
    turns.by, turns.cursor = 0, 0
    return
  end
  local last = found[#found]
  for _, id in ipairs(redis.call("ZRANGEBYSCORE", turns.waiting, last, last)) do
    moveBack(turns, id, tonumber(last))
  end
  turns.cursor = tonumber(last)
end

-- What has fallen due takes its place now, not the one it had when it was sent.
local function placeDue(turns, delayedKey, eventsKey, now)
  local due = redis.call("ZRANGEBYSCORE", delayedKey, 0, (now + 1) * 0x1000 - 1, "LIMIT", 0, MOVED_AT_ONCE)
  for _, id in ipairs(due) do
    redis.call("ZREM", delayedKey, id)
    queueJob(turns, id)
    redis.call("XADD", eventsKey, "*", "event", "waiting", "jobId", id, "prev", "delayed")
    redis.call("HSET", turns.base .. id, "delay", 0)
  end
end

-- Jobs of others, the oldest first; and what BullMQ's sweep put there, which has a place. ("0:" are markers of BullMQ before version 5, which a worker throws away.)
local function placeWaiting(turns, waitKey)
  for _, id in ipairs(redis.call("RPOP", waitKey, MOVED_AT_ONCE) or {}) do
    local jobKey = turns.base .. id
    if redis.call("HEXISTS", jobKey, "rdp") == 1 then
      redis.call("HSET", jobKey, "priority", turns.now)
      redis.call("ZADD", turns.waiting, turns.now * SHIFT, id)
    elseif string.sub(id, 1, 2) ~= "0:" then
      queueJob(turns, id)
    end
  end
end

-- Who is next: id and place. Jobs of others that have a priority are placed once they are.
local function nextJob(turns)
  for _ = 1, LOOKED_AT do
    local first = redis.call("ZRANGE", turns.waiting, 0, 0, "WITHSCORES")
    if #first == 0 then
      return nil
    end
    if redis.call("HEXISTS", turns.base .. first[1], "rdp") == 1 then
      return first[1], placeAt(turns, tonumber(first[2]))
    end
    queueJob(turns, first[1])
  end
end

-- For people only: whose jobs these were, in the order in which they were started.
local function noteStarts(turns, groups, now)
  local key = turns.base .. "redrive:served"
  local kept = redis.call("HMGET", turns.key, "last", "run")
  local last, run, counts = kept[1], tonumber(kept[2]) or 0, {}
  for _, group in ipairs(groups) do
    run = group == last and run + 1 or 1
    last = group
    counts[group] = (counts[group] or 0) + 1
  end
  redis.call("HSET", turns.key, "last", last, "run", run)
  if redis.call("HLEN", key) > MAX_SERVED then
    redis.call("DEL", key)
  end
  for group, count in pairs(counts) do
    local before = string.match(redis.call("HGET", key, group) or "0", "^%d+")
    redis.call("HSET", key, group, string.format("%d %d", before + count, now))
  end
end
