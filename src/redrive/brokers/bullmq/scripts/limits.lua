--[[
  Tenants' own limits. Stands before the script that hands out, behind turns.lua and windows.lua.

  A job that comes up while its tenant is at its limit is set aside: moved behind all places, within "prioritized", into
  its tenant's band. There it is in nobody's way, is moved once and looked at no more until there is room. To BullMQ it
  is a waiting job like any other: it is counted, shown, removed, drained; a worker that knows nothing of limits gets it
  after all others. So nothing is lost with the state below: what lies in a band that nobody knows is placed again.

    score = 2^53 + band * 2^33 + 2 * number

  State, under the queue's own prefix:
    redrive:aside  sorted set: tenants with jobs set aside, by the ms at which they may have room
    redrive:bands  hash: of those, the band, and the place at which the next of its jobs would start (its lane);
                   and under "" the last band given away
    redrive:rates  hash: of tenants with a rate, until when what is counted matters, and a window (see windows.lua)
  and of redrive:turns `aside`: 0 nothing is set aside, 1 something is, 2 where the end of a job may make room; and
  `for`: under which limits.

  What a tenant has in hand is counted anew by each call that needs it, over "active": a count of its own could be wrong
  for ever once a worker dies.
]]
local FIRST_BAND, BAND, LAST_BAND = 0x20000000000000, 0x200000000, 0xFFFFF
local MAX_ASKED, LOOK_AGAIN_MS = 1000, 1000

local function openLimits(turns, activeKey, fair)
  turns.digest = redis.sha1hex(fair)
  turns.isLimited = next(turns.rates) ~= nil or next(turns.concurrency) ~= nil
  turns.activeKey, turns.ms = activeKey, serverNow()
  turns.asideKey, turns.bandsKey, turns.ratesKey = turns.base .. "redrive:aside", turns.base .. "redrive:bands",
    turns.base .. "redrive:rates"
  turns.bands, turns.rooms, turns.windows, turns.starts, turns.touched = {}, {}, {}, {}, {}
  -- Tenants with jobs set aside that may have room, in order; and whether they are in there.
  turns.asked, turns.isAsked = {}, {}
end

-- ------------------------------------------------------------------------------------------------ how much room

local function inHand(turns)
  if not turns.inHand then
    turns.inHand = {}
    for _, id in ipairs(redis.call("LRANGE", turns.activeKey, 0, -1)) do
      local group = redis.call("HGET", turns.base .. id, "rdt") or "-"
      turns.inHand[group] = (turns.inHand[group] or 0) + 1
    end
  end
  return turns.inHand
end

local function rateOf(turns, group)
  return turns.rates[group] or turns.rates["*"]
end

local function windowOf(turns, group)
  if not turns.windows[group] then
    local kept = redis.call("HGET", turns.ratesKey, group)
    turns.windows[group] = openWindow(kept and cmsgpack.unpack(kept)[2] or {}, rateOf(turns, group), turns.ms)
  end
  return turns.windows[group]
end

-- How many jobs of this group may start now.
local function roomOf(turns, group)
  local room = turns.rooms[group]
  if not room then
    room = math.huge
    local limit = turns.concurrency[group] or turns.concurrency["*"]
    if limit then
      room = limit - (inHand(turns)[group] or 0)
    end
    if rateOf(turns, group) and room > 0 then
      room = math.min(room, rateOf(turns, group)[1] - windowOf(turns, group).sum)
    end
    turns.rooms[group] = room
  end
  return room
end

-- When a group without room may have some: what is full is asked each time, the one asked longest ago first.
local function roomAt(turns, group)
  local at = turns.windows[group] and freeAt(turns.windows[group]) or 0
  return at > 0 and at or turns.ms
end

-- ------------------------------------------------------------------------------------------------ setting aside

local function bandOf(turns, group)
  local band = turns.bands[group]
  if band == nil then
    local kept = redis.call("HGET", turns.bandsKey, group)
    local number, lane = string.match(kept or "", "^(%d+) (%d+)$")
    band = number and { number = tonumber(number), lane = tonumber(lane) } or false
    turns.bands[group] = band
  end
  return band
end

local function newBand(turns, group, lane)
  local number = redis.call("HINCRBY", turns.bandsKey, "", 1)
  if number > LAST_BAND then
    -- All were given away once: the first that is free.
    local used = {}
    for _, kept in ipairs(redis.call("HVALS", turns.bandsKey)) do
      used[tonumber(string.match(kept, "^(%d+) ") or 0)] = true
    end
    number = 1
    while used[number] do
      number = number + 1
    end
  end
  turns.bands[group] = { number = number, lane = lane }
  return turns.bands[group]
end

local function setAside(turns, id, score, group)
  local band = bandOf(turns, group) or newBand(turns, group, placeAt(turns, score))
  -- What was put before all others is the first in there, too.
  local number = score % SHIFT == 0 and 0 or redis.call("INCR", turns.base .. "pc") % SHIFT
  redis.call("ZADD", turns.waiting, exact(FIRST_BAND + band.number * BAND + 2 * number), id)
  turns.touched[group] = true
end

local function headOf(turns, group)
  local first = FIRST_BAND + bandOf(turns, group).number * BAND
  return unpack(redis.call(
    "ZRANGEBYSCORE", turns.waiting, exact(first), "(" .. exact(first + BAND), "WITHSCORES", "LIMIT", 0, 1))
end

local function forgetBand(turns, group)
  local band = bandOf(turns, group)
  redis.call("HDEL", turns.bandsKey, group)
  redis.call("ZREM", turns.asideKey, group)
  turns.bands[group], turns.touched[group], turns.isAsked[group] = false, nil, nil
  -- What it has had stays counted.
  if band.lane > turns.now and endOf(turns, group) < band.lane then
    setEnd(turns, group, math.min(LAST_PLACE, band.lane))
  end
end

local function ask(turns, group)
  if not turns.isAsked[group] then
    turns.isAsked[group] = true
    turns.asked[#turns.asked + 1] = group
  end
end

-- What is set aside and may have room; all of it, where the limits are others than those it was set aside for.
local function askAside(turns)
  if turns.aside == 0 then
    return
  end
  local upTo = turns.setFor == turns.digest and turns.ms or "+inf"
  for _, group in ipairs(redis.call("ZRANGEBYSCORE", turns.asideKey, "-inf", upTo, "LIMIT", 0, MAX_ASKED)) do
    if bandOf(turns, group) then
      ask(turns, group)
      turns.touched[group] = true
    else
      redis.call("ZREM", turns.asideKey, group)
    end
  end
end

-- Of the groups with jobs set aside and room: the one that is next, and at which place.
local function firstAside(turns)
  local best, bestPlace
  for number = #turns.asked, 1, -1 do
    local group = turns.asked[number]
    if not turns.isAsked[group] or roomOf(turns, group) <= 0 then
      turns.isAsked[group] = nil
      table.remove(turns.asked, number)
    else
      local place = math.max(turns.now, bandOf(turns, group).lane)
      if not best or place <= bestPlace then
        best, bestPlace = group, place
      end
    end
  end
  return best, bestPlace
end

-- Jobs in bands that nobody knows.
local function placeLost(turns)
  for _, id in ipairs(redis.call("ZRANGE", turns.waiting, 0, MOVED_AT_ONCE - 1)) do
    queueJob(turns, id)
  end
end

-- ------------------------------------------------------------------------------------------------ whose turn it is

-- Who is next: {id, place, group, score where it was set aside}; else nil, and whether there is more to look at.
-- Jobs of others that have a priority are placed once they are.
local function nextJob(turns, count)
  for _ = 1, MOVED_AT_ONCE do
    local group, place = firstAside(turns)
    local id, score = firstJob(turns, count)
    if group and (not id or place <= placeAt(turns, score)) then
      local head, from = headOf(turns, group)
      if head then
        return { id = head, place = place, group = group, from = tonumber(from) }
      end
      forgetBand(turns, group)
    elseif not id then
      if turns.aside > 0 or next(turns.touched) or #turns.front == 0 then
        return nil, false
      end
      placeLost(turns)
    else
      local isPlaced, own = marksOf(turns, id)
      if not isPlaced then
        queueJob(turns, id)
      elseif not turns.isLimited and turns.aside == 0 then
        return { id = id, place = placeAt(turns, score), group = own }
      else
        local waits = bandOf(turns, own)
        if waits and roomOf(turns, own) > 0 then
          ask(turns, own)
        end
        if roomOf(turns, own) > 0 and (not waits or score % SHIFT == 0) then
          return { id = id, place = placeAt(turns, score), group = own }
        end
        setAside(turns, id, score, own)
        passFirst(turns)
      end
    end
  end
  return nil, true
end

-- Before BullMQ's script takes the first job: it is the one that is next.
local function bringForward(turns, start)
  if start.from then
    redis.call("ZADD", turns.waiting, 1, start.id)
    redis.call("HSET", turns.base .. start.id, "priority", start.place)
  end
end

local function bringBack(turns, start)
  if start.from then
    redis.call("ZADD", turns.waiting, exact(start.from), start.id)
  end
end

local function countStart(turns, start)
  startedAt(turns, start.place)
  local group = start.group
  if start.from then
    local band = bandOf(turns, group)
    band.lane = start.place + stepOf(turns, group, start.place)
    turns.touched[group] = true
  else
    passFirst(turns)
  end
  if turns.isLimited then
    turns.rooms[group] = roomOf(turns, group) - 1
    turns.starts[group] = (turns.starts[group] or 0) + 1
  end
end

-- ------------------------------------------------------------------------------------------------ writing it down

-- Of windows that are over some are thrown away with each one that is written.
local function keepRates(turns)
  local isKept = false
  for group, count in pairs(turns.starts) do
    if rateOf(turns, group) then
      local window = windowOf(turns, group)
      countStarts(window, count)
      local last = window.counting[#window.counting][1]
      local over = (last + window.rate[3] + 2) * window.rate[2]
      redis.call("HSET", turns.ratesKey, group, cmsgpack.pack({ over, windowNumbers(window) }))
      isKept = true
    end
  end
  for _, group in ipairs(isKept and redis.call("HRANDFIELD", turns.ratesKey, 3) or {}) do
    if cmsgpack.unpack(redis.call("HGET", turns.ratesKey, group))[1] < turns.ms then
      redis.call("HDEL", turns.ratesKey, group)
    end
  end
end

-- Returns in which ms it is worth another look, where something is set aside.
local function closeLimits(turns)
  if turns.isLimited then
    keepRates(turns)
  end
  for group in pairs(turns.touched) do
    local band = bandOf(turns, group)
    redis.call("HSET", turns.bandsKey, group, exact(band.number) .. " " .. exact(band.lane))
    redis.call("ZADD", turns.asideKey, roomAt(turns, group), group)
  end
  if turns.aside == 0 and not next(turns.touched) then
    return nil
  end
  local first = redis.call("ZRANGE", turns.asideKey, 0, 0, "WITHSCORES")
  if #first == 0 then
    turns.aside, turns.noted = 0, true
    redis.call("DEL", turns.bandsKey)
    return nil
  end
  turns.aside, turns.setFor, turns.noted = next(turns.concurrency) and 2 or 1, turns.digest, true
  if tonumber(first[2]) > turns.ms then
    return tonumber(first[2])
  end
  local later = redis.call("ZRANGEBYSCORE", turns.asideKey, "(" .. turns.ms, "+inf", "WITHSCORES", "LIMIT", 0, 1)
  return math.min(turns.ms + LOOK_AGAIN_MS, tonumber(later[2]) or math.huge)
end
