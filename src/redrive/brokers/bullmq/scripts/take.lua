--[[
  Hands out at most so many jobs, each as BullMQ's moveToActive does: locked, counted, in "active".

  moveToActive(KEYS, ARGV) of the package stands before this text, and windows.lua; turns.lua where turns are taken, and
  limits.lua as limitsOf(turns, activeKey, fair, now), else no_turns.lua.

  KEYS     the queue's: wait active prioritized events stalled limiter delayed paused meta pc marker
           (the eleven of moveToActive), redrive:rate
  ARGV[1]  key prefix of the queue
  ARGV[2]  at most how many
  ARGV[3]  msgpacked options of moveToActive: token, lockDuration, name
  ARGV[4]  no more jobs once those taken have so many bytes
  ARGV[5]  a rate that all workers of redrive share: starts, 0 for none; ARGV[6] ms of one slot of its window; ARGV[7]
           slots that count before the present one. See windows.lua. It is BullMQ's own limiter too, with its fixed
           window, unless the queue has a global one: so a Node worker with the same limiter shares it.
  ARGV[8]  turns between tenants, see turns.lua: what has none yet is placed before, and virtual time moves on. A
           tenant's own limits hold, see limits.lua

  Returns {server's ms, wait ms until the rate limit allows more or 0, ms at which more may start by itself or 0,
           is paused or full, {id, fields}, {id, fields}, ...}.
]]
local keys = { unpack(KEYS, 1, 11) }
local meta = settings(KEYS[9])
keys[1] = targetFor(meta[1], meta[5], KEYS[1], KEYS[8])
local now = serverNow()
-- As BullMQ's scripts get it: a number would be turned into text for each job.
local stamp = string.format("%.0f", now)
local taken = { now, 0, 0, 0 }
local size = 0
local limit = tonumber(ARGV[2])
local groups = {}

-- The queue's own rate, as it is kept: ms is the length of a slot, all others are slots.
local function sharedWindow(rate)
  local kept, numbers = redis.call("HGETALL", KEYS[12]), { false }
  for place = 1, #kept, 2 do
    if kept[place] == "ms" then
      numbers[1] = tonumber(kept[place + 1])
    else
      numbers[#numbers + 1] = tonumber(kept[place])
      numbers[#numbers + 1] = tonumber(kept[place + 1])
    end
  end
  return openWindow(numbers, rate, now)
end

local function keepShared(window, count)
  countStarts(window, count)
  local numbers = windowNumbers(window)
  redis.call("DEL", KEYS[12])
  redis.call("HSET", KEYS[12], "ms", unpack(numbers))
  redis.call("PEXPIRE", KEYS[12], (window.rate[3] + 2) * window.rate[2])
end

local window
if tonumber(ARGV[5]) > 0 then
  window = sharedWindow({ tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]) })
  local at = freeAt(window)
  if at > 0 then
    return { now, math.max(1, at - now), 0, 0 }
  end
  limit = math.min(limit, window.rate[1] - window.sum)
end
local options = ARGV[3]
if window and not meta[3] then
  local given = cmsgpack.unpack(options)
  given["limiter"] = { max = window.rate[1], duration = window.rate[2] * (window.rate[3] - 1) }
  options = cmsgpack.pack(given)
end

local turns = openTurns(ARGV[1], ARGV[8])
local limits
if turns then
  catchUp(turns, limit)
  rebase(turns)
  placeWaiting(turns, KEYS[1], KEYS[9], KEYS[2])
  placeDue(turns, KEYS[7], KEYS[4], now)
  if turns.aside > 0 or next(turns.rates) or next(turns.concurrency) then
    limits = limitsOf(turns, KEYS[2], ARGV[8], now)
  end
  -- All that can run has a place. What is left there is looked at by the next take, and not by BullMQ's script.
  keys[1], keys[7] = turns.none, turns.none
  known[turns.none] = {}
end

-- What BullMQ's script answers where nothing can be started.
local function noteNothing(limitedMs, dueAt)
  taken[2], taken[3] = limitedMs, math.floor(tonumber(dueAt) or 0)
  if turns and limitedMs == 0 then
    taken[3] = math.floor((tonumber(redis.call("ZRANGE", KEYS[7], 0, 0, "WITHSCORES")[2]) or 0) / 0x1000)
  end
  if limitedMs == 0 and taken[3] == 0 and isHeld(KEYS[9], KEYS[2]) then
    taken[4] = 1
  end
end

local function keep(id, fields)
  taken[#taken + 1] = { id, fields }
  for place, value in ipairs(fields) do
    size = size + #value
    -- BullMQ marks a job to be failed that has stalled too often. Here the starts count, and the last one is a letter.
    if value == "defa" and place % 2 == 1 then
      redis.call("HDEL", ARGV[1] .. id, "defa")
    end
  end
end

-- Starts the next job; nil where there is none, or an error.
local function startNext(start)
  if limits and start then
    limits.bringForward(start)
  end
  local moved = guarded(moveToActive, keys, { ARGV[1], stamp, options })
  if moved["err"] or type(moved[1]) ~= "table" then
    if limits and start then
      limits.bringBack(start)
    end
    if not moved["err"] then
      noteNothing(moved[3], moved[4])
    end
    return moved
  end
  if start then
    groups[#groups + 1] = start.group
    if limits then
      limits.countStart(start)
    else
      startedAt(turns, start.place)
      passFirst(turns)
    end
  end
  keep(moved[2], moved[1])
end

local failed
local isMore = false
for _ = 1, limit do
  local start
  if turns then
    if limits then
      start, isMore = limits.nextJob(limit)
    else
      start, isMore = nextPlaced(turns, limit)
    end
    -- With nothing at all there BullMQ's script tidies up; what is set aside it would start.
    if not start and (isMore or #turns.front > 0) then
      noteNothing(0, 0)
      break
    end
  end
  failed = startNext(start)
  if failed or size > tonumber(ARGV[4]) then
    break
  end
end
if turns then
  local at = limits and limits.close()
  at = isMore and now or at
  if #groups > 0 then
    noteStarts(turns, groups, now)
  end
  closeTurns(turns)
  if at and taken[2] == 0 and (taken[3] == 0 or at < taken[3]) then
    taken[3] = math.ceil(at)
  end
end
if #taken == 4 and failed and failed["err"] then
  return failed
end
if window and #taken > 4 then
  keepShared(window, #taken - 4)
end
return taken
