--[[
  Turns between tenants, as redrive.core.policy.places has them: a job's priority is its place in virtual time. Stands
  before the scripts that place jobs. BullMQ knows nothing like it.

  State, under the queue's own prefix:
    redrive:turns  hash: now (virtual time), by and cursor (while places move back: by how much, and the score up to
                   which they have), and aside and limits (see limits.lua)
    redrive:served hash: by group, starts by redrive and when the last one was; begun anew at 10 000 groups.
                   Under "" how many were started in a row, and for whom
    redrive:ends   sorted set: where the next message of a tenant would go, of tenants ahead of virtual time

  Of a job: `rdt` its tenant's group (absent: "-"), `rdp` that it was placed, and the priority it had before.

  While places move back `now` and the ends are moved already, and so are jobs up to the cursor. A job that belongs
  behind the cursor is written where it would have been, and moves with the others.

  What is known is kept in tables within one call, and written once at its end.
]]
local LAST_PLACE, UNIT, REBASE_AT, SHIFT = 2097151, 16, 524287, 0x100000000
local MOVED_AT_ONCE, LOOKED_AT, MAX_SERVED, MAX_READ = 500, 100, 10000, 0x10000
local MAX_GROUP_BYTES, WRITTEN_AT_ONCE = 256, 1000
-- From here on in "prioritized" lies what is set aside, see limits.lua: behind the last priority BullMQ takes.
local ASIDE = 0x20000200000000

local FORGET_EVERY = 64 * UNIT
local STATE = { "now", "by", "cursor", "aside", "limits" }

local function exact(number)
  return string.format("%.0f", number)
end

-- `fair`: msgpacked {batch, steps by group, whether steps can be uneven, rates by group, concurrencies by group, field
-- of foreign jobs that names the tenant}; "" where no turns are taken: nil then.
local function openTurns(base, fair)
  if not fair or fair == "" then
    return nil
  end
  local given = cmsgpack.unpack(fair)
  local key = base .. "redrive:turns"
  local kept = redis.call("HMGET", key, unpack(STATE))
  local was = {
    now = tonumber(kept[1]) or 1, by = tonumber(kept[2]) or 0, cursor = tonumber(kept[3]) or 0,
    aside = tonumber(kept[4]) or 0, limits = kept[5] or "",
  }
  -- All at once: a table that grows is built anew each time. `front`, `at`: what waits first, and where in it we are;
  -- `marked` and what follows: of the job looked at last.
  return {
    now = was.now, by = was.by, cursor = was.cursor, aside = was.aside, limits = was.limits, was = was,
    known = {}, moved = {}, base = base, key = key, ends = base .. "redrive:ends",
    none = base .. "redrive:none", waiting = base .. "prioritized", batch = given[1], steps = given[2],
    isUneven = given[3], rates = given[4], concurrency = given[5], field = given[6], front = false, at = 1,
    marked = false, isPlaced = false, group = false,
  }
end

-- ------------------------------------------------------------------------------------------------ where tenants are

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

-- ------------------------------------------------------------------------------------------------ placing

-- What is needed only where something is placed: few takes do. Made once, for a function costs each call that makes it.
local placingMade
local function placing()
  if placingMade then
    return placingMade
  end

  local function endOf(turns, group)
    local known = turns.known[group]
    if not known then
      known = tonumber(redis.call("ZSCORE", turns.ends, group)) or 1
      turns.known[group] = known
    end
    return known
  end

  local function writeEnds(turns)
    local pairs_ = {}
    for group in pairs(turns.moved) do
      pairs_[#pairs_ + 1] = turns.known[group]
      pairs_[#pairs_ + 1] = group
      if #pairs_ >= WRITTEN_AT_ONCE then
        redis.call("ZADD", turns.ends, unpack(pairs_))
        pairs_ = {}
      end
    end
    if #pairs_ > 0 then
      redis.call("ZADD", turns.ends, unpack(pairs_))
    end
    turns.moved = {}
  end

  local function setEnd(turns, group, place)
    turns.known[group] = place
    turns.moved[group] = true
    if turns.isUneven then
      -- `stepOf` looks there.
      writeEnds(turns)
    end
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
    local place = math.max(turns.now, endOf(turns, group))
    if isCharged then
      setEnd(turns, group, math.min(LAST_PLACE, place + stepOf(turns, group, place)))
    end
    if turns.by > 0 and place + turns.by > math.floor(turns.cursor / SHIFT) then
      return math.min(LAST_PLACE, place + turns.by)
    end
    return place
  end

  -- As `fairness.group_of`, in the data of a job that redrive did not make.
  local function tenantIn(turns, jobKey)
    if redis.call("HSTRLEN", jobKey, "data") > MAX_READ then
      return "-"
    end
    local ok, data = pcall(cjson.decode, redis.call("HGET", jobKey, "data") or "")
    local found = ok and type(data) == "table" and data[turns.field]
    if type(found) == "number" then
      found = math.floor(found) == found and exact(found) or tostring(found)
    end
    if type(found) ~= "string" then
      return "-"
    end
    found = string.gsub(string.match(found, "^%s*(.-)%s*$"), "%z", "\239\191\189")
    if #found > MAX_GROUP_BYTES then
      local last = MAX_GROUP_BYTES - 3
      -- Not within a character.
      while last > 0 and math.floor(string.byte(found, last + 1) / 64) == 2 do
        last = last - 1
      end
      found = string.sub(found, 1, last) .. "\226\128\166"
    end
    return found == "" and "-" or found
  end

  -- A place for a job that is there, whatever its priority was.
  local function placeJob(turns, jobKey)
    local kept = redis.call("HMGET", jobKey, "rdt", "priority", "rdp", "rd")
    local group = kept[1]
    if not group and turns.field ~= "" and not kept[4] then
      group = tenantIn(turns, jobKey)
      if group ~= "-" then
        redis.call("HSET", jobKey, "rdt", group)
      end
    end
    local place = nextPlace(turns, group or "-", true)
    redis.call("HSET", jobKey, "priority", place, "rdp", kept[3] or kept[2] or 0)
    return place
  end

  local function queueJob(turns, id)
    local place = placeJob(turns, turns.base .. id)
    redis.call("ZADD", turns.waiting, place * SHIFT + redis.call("INCR", turns.base .. "pc") % SHIFT, id)
    turns.front, turns.marked = false, false
  end

  -- Jobs that were set aside, and nobody knows of: they are placed again.
  local function placeLost(turns)
    for _, id in ipairs(redis.call("ZRANGE", turns.waiting, 0, MOVED_AT_ONCE - 1)) do
      queueJob(turns, id)
    end
  end

  placingMade = {
    endOf = endOf, writeEnds = writeEnds, setEnd = setEnd, stepOf = stepOf, nextPlace = nextPlace,
    placeJob = placeJob, queueJob = queueJob, placeLost = placeLost,
  }
  return placingMade
end

-- What has changed; and now and then, that tenants were passed by virtual time.
local function closeTurns(turns)
  if next(turns.moved) then
    placing().writeEnds(turns)
  end
  local was, fields = turns.was, {}
  for _, name in ipairs(STATE) do
    if turns[name] ~= was[name] then
      fields[#fields + 1] = name
      fields[#fields + 1] = turns[name]
    end
  end
  if #fields == 0 then
    return
  end
  redis.call("HSET", turns.key, unpack(fields))
  if turns.by ~= was.by or math.floor(turns.now / FORGET_EVERY) ~= math.floor(was.now / FORGET_EVERY) then
    redis.call("ZREMRANGEBYSCORE", turns.ends, "-inf", turns.now)
  end
end

-- What has fallen due takes its place now, not the one it had when it was sent.
local function placeDue(turns, delayedKey, eventsKey, now)
  local due = redis.call("ZRANGEBYSCORE", delayedKey, 0, (now + 1) * 0x1000 - 1, "LIMIT", 0, MOVED_AT_ONCE)
  for _, id in ipairs(due) do
    redis.call("ZREM", delayedKey, id)
    placing().queueJob(turns, id)
    redis.call("XADD", eventsKey, "*", "event", "waiting", "jobId", id, "prev", "delayed")
    redis.call("HSET", turns.base .. id, "delay", 0)
  end
end

-- Jobs of others, the oldest first; and what BullMQ's sweep put there, which has a place. ("0:" are markers of BullMQ
-- before version 5, which a worker throws away.) While nothing may be handed out they stay.
local function placeWaiting(turns, waitKey, metaKey, activeKey)
  if redis.call("LLEN", waitKey) == 0 or isHeld(metaKey, activeKey) then
    return
  end
  for _, id in ipairs(redis.call("RPOP", waitKey, MOVED_AT_ONCE) or {}) do
    local jobKey = turns.base .. id
    if redis.call("HEXISTS", jobKey, "rdp") == 1 then
      redis.call("HSET", jobKey, "priority", turns.now)
      redis.call("ZADD", turns.waiting, turns.now * SHIFT, id)
      turns.front = false
    elseif string.sub(id, 1, 2) ~= "0:" then
      placing().queueJob(turns, id)
    end
  end
end

-- ------------------------------------------------------------------------------------------------ who is first

-- The first job with a place, and its score; the next ones are read with it. Nil where all that waits is set aside.
local function firstJob(turns, count)
  if not turns.front or turns.at > #turns.front then
    turns.front, turns.at = redis.call("ZRANGE", turns.waiting, 0, count - 1, "WITHSCORES"), 1
  end
  local score = tonumber(turns.front[turns.at + 1])
  if score and score < ASIDE then
    return turns.front[turns.at], score
  end
end

-- The first job is no longer there.
local function passFirst(turns)
  turns.at = turns.at + 2
end

-- Of a waiting job: whether it was placed, and its group.
local function marksOf(turns, id)
  if turns.marked ~= id then
    local marks = redis.call("HMGET", turns.base .. id, "rdp", "rdt")
    turns.marked, turns.isPlaced, turns.group = id, marks[1] ~= false, marks[2] or "-"
  end
  return turns.isPlaced, turns.group
end

-- Who is next where no tenant has a limit and nothing is set aside: {id, place, group}, or nil. Jobs of others that
-- have a priority are placed once they are.
local function nextPlaced(turns, count)
  for _ = 1, LOOKED_AT do
    local id, score = firstJob(turns, count)
    if id then
      local isPlaced, group = marksOf(turns, id)
      if isPlaced then
        return { id = id, place = placeAt(turns, score), group = group }
      end
      placing().queueJob(turns, id)
    elseif #turns.front > 0 then
      placing().placeLost(turns)
    else
      return nil, false
    end
  end
  return nil, true
end

-- Starts that nobody told of (Node's workers) have moved virtual time as well: to just before what waits first, and
-- behind everything where nothing waits.
local function catchUp(turns, count)
  local id, score = firstJob(turns, count)
  if not id then
    startedAt(turns, tonumber(redis.call("ZREVRANGE", turns.ends, 0, 0, "WITHSCORES")[2]) or 1)
  elseif marksOf(turns, id) then
    startedAt(turns, placeAt(turns, score) - UNIT)
  end
end

-- ------------------------------------------------------------------------------------------------ moving back

-- One step of moving all places back, once virtual time has come far. In the order of the queue, so that it stays.
local function rebase(turns)
  if turns.by == 0 and turns.now < REBASE_AT then
    return
  end

  local function moveBack(id, score)
    local place = math.max(1, math.floor(score / SHIFT) - turns.by)
    redis.call("ZADD", turns.waiting, place * SHIFT + score % SHIFT, id)
    redis.call("HSET", turns.base .. id, "priority", place)
  end

  local function beginToMove()
    redis.call("ZREMRANGEBYSCORE", turns.ends, "-inf", turns.now)
    turns.by, turns.cursor, turns.now = turns.now - 1, 0, 1
    local ends = redis.call("ZRANGE", turns.ends, 0, -1, "WITHSCORES")
    for number = 1, #ends, 2 do
      redis.call("ZADD", turns.ends, tonumber(ends[number + 1]) - turns.by, ends[number])
    end
    local bands = redis.call("HGETALL", turns.base .. "redrive:bands")
    for number = 1, #bands, 2 do
      local band, lane = string.match(bands[number + 1], "^(%d+) (%d+)$")
      if band then
        lane = math.max(1, tonumber(lane) - turns.by)
        redis.call("HSET", turns.base .. "redrive:bands", bands[number], band .. " " .. exact(lane))
      end
    end
  end

  if turns.by == 0 then
    beginToMove()
  end
  turns.known, turns.front = {}, false
  local behind, last_ = "(" .. exact(turns.cursor), "(" .. exact(ASIDE)
  local found = redis.call("ZRANGEBYSCORE", turns.waiting, behind, last_, "WITHSCORES", "LIMIT", 0, MOVED_AT_ONCE)
  for number = 1, #found, 2 do
    moveBack(found[number], tonumber(found[number + 1]))
  end
  if #found == 0 then
    turns.by, turns.cursor = 0, 0
    return
  end
  local last = found[#found]
  for _, id in ipairs(redis.call("ZRANGEBYSCORE", turns.waiting, last, last)) do
    moveBack(id, tonumber(last))
  end
  turns.cursor = tonumber(last)
end

-- ------------------------------------------------------------------------------------------------ for people only

-- Whose jobs these were, in the order in which they were started.
local function noteStarts(turns, groups, now)
  local key = turns.base .. "redrive:served"
  local counts, names, fields = {}, { "" }, {}
  for _, group in ipairs(groups) do
    if not counts[group] then
      names[#names + 1] = group
    end
    counts[group] = (counts[group] or 0) + 1
  end
  local kept = redis.call("HMGET", key, unpack(names))
  local run, last = string.match(kept[1] or "0 ", "^(%d+) (.*)$")
  for _, group in ipairs(groups) do
    run = group == last and run + 1 or 1
    last = group
  end
  fields[1], fields[2] = "", run .. " " .. last
  local isNew = false
  for number = 2, #names do
    isNew = isNew or not kept[number]
    fields[#fields + 1] = names[number]
    fields[#fields + 1] = string.format("%d %d", string.match(kept[number] or "0", "^%d+") + counts[names[number]], now)
  end
  if isNew and redis.call("HLEN", key) > MAX_SERVED then
    redis.call("DEL", key)
  end
  redis.call("HSET", key, unpack(fields))
end
