--[[
  Tenants' own limits, as a function of (turns, activeKey, fair, now), behind turns.lua and windows.lua: it is called
  where a tenant has a limit or something is set aside, and returns what `take.lua` then does instead.

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
  `limits`: under which.

  What a tenant has in hand is counted anew by each call that needs it, over "active": a count of its own could be wrong
  for ever once a worker dies.

  `turns`: see openTurns, `fair`: what it was made from. `activeKey`: the queue's "active". `now`: the server's clock.
]]
local FIRST_BAND, BAND, LAST_BAND = 0x20000000000000, 0x200000000, 0xFFFFF
local MAX_ASKED, LOOK_AGAIN_MS = 1000, 1000

local isLimited = next(turns.rates) ~= nil or next(turns.concurrency) ~= nil
local digest = redis.sha1hex(fair)
local asideKey, bandsKey, ratesKey = turns.base .. "redrive:aside", turns.base .. "redrive:bands",
  turns.base .. "redrive:rates"
-- By group: its band (false: none), how many may start, its window, how many were started, whether it is written down.
local bands, rooms, windows, starts, touched = {}, {}, {}, {}, {}
-- Tenants with jobs set aside that may have room, in order; and whether they are in there.
local asked, isAsked = {}, {}
local active

-- ------------------------------------------------------------------------------------------------ how much room

local function inHand()
  if not active then
    active = {}
    for _, id in ipairs(redis.call("LRANGE", activeKey, 0, -1)) do
      local group = redis.call("HGET", turns.base .. id, "rdt") or "-"
      active[group] = (active[group] or 0) + 1
    end
  end
  return active
end

local function rateOf(group)
  return turns.rates[group] or turns.rates["*"]
end

local function windowOf(group)
  if not windows[group] then
    local kept = redis.call("HGET", ratesKey, group)
    windows[group] = openWindow(kept and cmsgpack.unpack(kept)[2] or {}, rateOf(group), now)
  end
  return windows[group]
end

-- How many jobs of this group may start now.
local function roomOf(group)
  local room = rooms[group]
  if not room then
    room = math.huge
    local limit = turns.concurrency[group] or turns.concurrency["*"]
    if limit then
      room = limit - (inHand()[group] or 0)
    end
    if rateOf(group) and room > 0 then
      room = math.min(room, rateOf(group)[1] - windowOf(group).sum)
    end
    rooms[group] = room
  end
  return room
end

-- When a group without room may have some: what is full is asked each time, the one asked longest ago first.
local function roomAt(group)
  local at = windows[group] and freeAt(windows[group]) or 0
  return at > 0 and at or now
end

-- ------------------------------------------------------------------------------------------------ setting aside

local function bandOf(group)
  local band = bands[group]
  if band == nil then
    local kept = redis.call("HGET", bandsKey, group)
    local number, lane = string.match(kept or "", "^(%d+) (%d+)$")
    band = number and { number = tonumber(number), lane = tonumber(lane) } or false
    bands[group] = band
  end
  return band
end

local function newBand(group, lane)
  local number = redis.call("HINCRBY", bandsKey, "", 1)
  if number > LAST_BAND then
    -- All were given away once: the first that is free.
    local used = {}
    for _, kept in ipairs(redis.call("HVALS", bandsKey)) do
      used[tonumber(string.match(kept, "^(%d+) ") or 0)] = true
    end
    number = 1
    while used[number] do
      number = number + 1
    end
  end
  bands[group] = { number = number, lane = lane }
  return bands[group]
end

local function setAside(id, score, group)
  local band = bandOf(group) or newBand(group, placeAt(turns, score))
  -- What was put before all others is the first in there, too.
  local number = score % SHIFT == 0 and 0 or redis.call("INCR", turns.base .. "pc") % SHIFT
  redis.call("ZADD", turns.waiting, exact(FIRST_BAND + band.number * BAND + 2 * number), id)
  touched[group] = true
end

local function headOf(group)
  local first = FIRST_BAND + bandOf(group).number * BAND
  return unpack(redis.call(
    "ZRANGEBYSCORE", turns.waiting, exact(first), "(" .. exact(first + BAND), "WITHSCORES", "LIMIT", 0, 1))
end

local function forgetBand(group)
  local band = bandOf(group)
  redis.call("HDEL", bandsKey, group)
  redis.call("ZREM", asideKey, group)
  bands[group], touched[group], isAsked[group] = false, nil, nil
  -- What it has had stays counted.
  if band.lane > turns.now and placing().endOf(turns, group) < band.lane then
    placing().setEnd(turns, group, math.min(LAST_PLACE, band.lane))
  end
end

local function ask(group)
  if not isAsked[group] then
    isAsked[group] = true
    asked[#asked + 1] = group
  end
end

-- What is set aside and may have room; all of it, where the limits are others than those it was set aside for.
local function askAside()
  if turns.aside == 0 then
    return
  end
  local upTo = turns.limits == digest and now or "+inf"
  for _, group in ipairs(redis.call("ZRANGEBYSCORE", asideKey, "-inf", upTo, "LIMIT", 0, MAX_ASKED)) do
    if bandOf(group) then
      ask(group)
      touched[group] = true
    else
      redis.call("ZREM", asideKey, group)
    end
  end
end

-- Of the groups with jobs set aside and room: the one that is next, and at which place.
local function firstAside()
  local best, bestPlace
  for number = #asked, 1, -1 do
    local group = asked[number]
    if not isAsked[group] or roomOf(group) <= 0 then
      isAsked[group] = nil
      table.remove(asked, number)
    else
      local place = math.max(turns.now, bandOf(group).lane)
      if not best or place <= bestPlace then
        best, bestPlace = group, place
      end
    end
  end
  return best, bestPlace
end

-- ------------------------------------------------------------------------------------------------ whose turn it is

-- Who is next: {id, place, group, score where it was set aside}; else nil, and whether there is more to look at.
-- Jobs of others that have a priority are placed once they are.
local function nextJob(count)
  for _ = 1, MOVED_AT_ONCE do
    local group, place = firstAside()
    local id, score = firstJob(turns, count)
    if group and (not id or place <= placeAt(turns, score)) then
      local head, from = headOf(group)
      if head then
        return { id = head, place = place, group = group, from = tonumber(from) }
      end
      forgetBand(group)
    elseif not id then
      if turns.aside > 0 or next(touched) or #turns.front == 0 then
        return nil, false
      end
      placing().placeLost(turns)
    else
      local isPlaced, own = marksOf(turns, id)
      if not isPlaced then
        placing().queueJob(turns, id)
      elseif not isLimited and turns.aside == 0 then
        return { id = id, place = placeAt(turns, score), group = own }
      else
        local waits = bandOf(own)
        if waits and roomOf(own) > 0 then
          ask(own)
        end
        if roomOf(own) > 0 and (not waits or score % SHIFT == 0) then
          return { id = id, place = placeAt(turns, score), group = own }
        end
        setAside(id, score, own)
        passFirst(turns)
      end
    end
  end
  return nil, true
end

-- Before BullMQ's script takes the first job: it is the one that is next.
local function bringForward(start)
  if start.from then
    redis.call("ZADD", turns.waiting, 1, start.id)
    redis.call("HSET", turns.base .. start.id, "priority", start.place)
  end
end

local function bringBack(start)
  if start.from then
    redis.call("ZADD", turns.waiting, exact(start.from), start.id)
  end
end

local function countStart(start)
  startedAt(turns, start.place)
  local group = start.group
  if start.from then
    local band = bandOf(group)
    band.lane = math.min(LAST_PLACE, start.place + placing().stepOf(turns, group, start.place))
    touched[group] = true
  else
    passFirst(turns)
  end
  if isLimited then
    rooms[group] = roomOf(group) - 1
    starts[group] = (starts[group] or 0) + 1
  end
end

-- ------------------------------------------------------------------------------------------------ writing it down

-- Of windows that are over some are thrown away with each one that is written.
local function keepRates()
  local isKept = false
  for group, count in pairs(starts) do
    if rateOf(group) then
      local window = windowOf(group)
      countStarts(window, count)
      local last = window.counting[#window.counting][1]
      local over = (last + window.rate[3] + 2) * window.rate[2]
      redis.call("HSET", ratesKey, group, cmsgpack.pack({ over, windowNumbers(window) }))
      isKept = true
    end
  end
  for _, group in ipairs(isKept and redis.call("HRANDFIELD", ratesKey, 3) or {}) do
    if cmsgpack.unpack(redis.call("HGET", ratesKey, group))[1] < now then
      redis.call("HDEL", ratesKey, group)
    end
  end
end

-- Returns in which ms it is worth another look, where something is set aside.
local function close()
  if isLimited then
    keepRates()
  end
  for group in pairs(touched) do
    local band = bandOf(group)
    redis.call("HSET", bandsKey, group, exact(band.number) .. " " .. exact(band.lane))
    redis.call("ZADD", asideKey, roomAt(group), group)
  end
  if turns.aside == 0 and not next(touched) then
    return nil
  end
  local first = redis.call("ZRANGE", asideKey, 0, 0, "WITHSCORES")
  if #first == 0 then
    turns.aside = 0
    redis.call("DEL", bandsKey)
    return nil
  end
  turns.aside, turns.limits = next(turns.concurrency) and 2 or 1, digest
  if tonumber(first[2]) > now then
    return tonumber(first[2])
  end
  local later = redis.call("ZRANGEBYSCORE", asideKey, "(" .. now, "+inf", "WITHSCORES", "LIMIT", 0, 1)
  return math.min(now + LOOK_AGAIN_MS, tonumber(later[2]) or math.huge)
end

askAside()
return {
  nextJob = nextJob, bringForward = bringForward, bringBack = bringBack, countStart = countStart, close = close,
}
