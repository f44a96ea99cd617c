--[[
  Hands out at most so many jobs, each as BullMQ's moveToActive does: locked, counted, in "active".

  moveToActive(KEYS, ARGV) of the package stands before this text.

  KEYS     the queue's: wait active prioritized events stalled limiter delayed paused meta pc marker
           (the eleven of moveToActive), redrive:rate
  ARGV[1]  key prefix of the queue
  ARGV[2]  at most how many
  ARGV[3]  msgpacked options of moveToActive: token, lockDuration, name
  ARGV[4]  no more jobs once those taken have so many bytes
  ARGV[5]  a rate that all workers of redrive share: starts, 0 for none; ARGV[6] ms of one slot of its window; ARGV[7]
           slots that count before the present one. As redrive.core.policy.flow.Window does it: never more than so many
           starts in any sliding period. It is BullMQ's own limiter too, with its fixed window, unless the queue has a
           global one: so a Node worker with the same limiter shares it.
  ARGV[8]  turns between tenants, see turns.lua: what has none yet is placed before, and virtual time moves on

  Returns {server's ms, wait ms until the rate limit allows more or 0, next due ms or 0, is paused or full,
           {id, fields}, {id, fields}, ...}.
]]
local keys = { unpack(KEYS, 1, 11) }
keys[1] = targetOf(KEYS[9], KEYS[1], KEYS[8])
local now = serverNow()
local taken = { now, 0, 0, 0 }
local size = 0
local limit = tonumber(ARGV[2])
local rate, slotMs, span = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local slot = rate > 0 and math.floor(now / slotMs) or 0

-- The starts that still count: {slot, starts}, oldest first, and their sum. Under another rate by now, slots have another
-- length: a start is forgotten no earlier for that.
local function started()
  local kept = redis.call("HGETALL", KEYS[12])
  local storedMs, slots, sum = slotMs, {}, 0
  for place = 1, #kept, 2 do
    if kept[place] == "ms" then
      storedMs = tonumber(kept[place + 1])
    end
  end
  for place = 1, #kept, 2 do
    if kept[place] ~= "ms" then
      local own = tonumber(kept[place])
      if storedMs ~= slotMs then
        own = math.floor(((own + 1) * storedMs - 1) / slotMs)
      end
      slots[#slots + 1] = { own, tonumber(kept[place + 1]) }
      -- A clock that went back stays in the last slot.
      slot = math.max(slot, own)
    end
  end
  table.sort(slots, function(one, other) return one[1] < other[1] end)
  local counting = {}
  for _, each in ipairs(slots) do
    if each[1] >= slot - span then
      counting[#counting + 1] = each
      sum = sum + each[2]
    end
  end
  return counting, sum
end

local function keepStarted(counting)
  local fields = { "ms", slotMs }
  for _, each in ipairs(counting) do
    fields[#fields + 1] = each[1]
    fields[#fields + 1] = each[2]
  end
  redis.call("DEL", KEYS[12])
  redis.call("HSET", KEYS[12], unpack(fields))
  redis.call("PEXPIRE", KEYS[12], (span + 2) * slotMs)
end

local counting
if rate > 0 then
  local sum
  counting, sum = started()
  local excess = sum - rate
  if excess >= 0 then
    for _, each in ipairs(counting) do
      excess = excess - each[2]
      if excess < 0 then
        return { now, math.max(1, (each[1] + span + 1) * slotMs - now), 0, 0 }
      end
    end
  end
  limit = math.min(limit, rate - sum)
end
local options = ARGV[3]
if rate > 0 and redis.call("HEXISTS", KEYS[9], "max") == 0 then
  local given = cmsgpack.unpack(options)
  given["limiter"] = { max = rate, duration = slotMs * (span - 1) }
  options = cmsgpack.pack(given)
end
local turns = openTurns(ARGV[1], ARGV[8])
local groups = {}
if turns then
  catchUp(turns)
  rebase(turns)
  if not isHeld(KEYS[9], KEYS[2]) then
    placeWaiting(turns, KEYS[1])
  end
  placeDue(turns, KEYS[7], KEYS[4], now)
  -- All that can run has a place. What is left there is looked at by the next take, and not by BullMQ's script.
  keys[1], keys[7] = turns.none, turns.none
end
for _ = 1, limit do
  local nextId, place
  if turns then
    nextId, place = nextJob(turns)
  end
  local moved = guarded(moveToActive, keys, { ARGV[1], now, options })
  if moved["err"] then
    if #taken == 4 then
      if turns then
        closeTurns(turns)
      end
      return moved
    end
    break
  end
  if type(moved[1]) ~= "table" then
    taken[2] = moved[3]
    taken[3] = math.floor(tonumber(moved[4]) or 0)
    if turns and taken[2] == 0 then
      taken[3] = math.floor((tonumber(redis.call("ZRANGE", KEYS[7], 0, 0, "WITHSCORES")[2]) or 0) / 0x1000)
    end
    if taken[2] == 0 and taken[3] == 0 and isHeld(KEYS[9], KEYS[2]) then
      taken[4] = 1
    end
    break
  end
  taken[#taken + 1] = { moved[2], moved[1] }
  if turns then
    groups[#groups + 1] = "-"
    if place and moved[2] == nextId then
      startedAt(turns, place)
    end
  end
  for place, value in ipairs(moved[1]) do
    size = size + #value
    if turns and value == "rdt" and place % 2 == 1 then
      groups[#groups] = moved[1][place + 1]
    end
    -- BullMQ marks a job to be failed that has stalled too often. Here the starts count, and the last one is a letter.
    if value == "defa" and place % 2 == 1 then
      redis.call("HDEL", ARGV[1] .. moved[2], "defa")
    end
  end
  if size > tonumber(ARGV[4]) then
    break
  end
end
if turns then
  closeTurns(turns)
  if #groups > 0 then
    noteStarts(turns, groups, now)
  end
end
if rate > 0 and #taken > 4 then
  local last = counting[#counting]
  if last and last[1] == slot then
    last[2] = last[2] + #taken - 4
  else
    counting[#counting + 1] = { slot, #taken - 4 }
  end
  keepStarted(counting)
end
return taken
