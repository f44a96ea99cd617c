--[[
  Ends deliveries of one queue, each as BullMQ's own scripts do, for whoever holds the job's lock.

  The scripts of the package stand before this text as functions of (KEYS, ARGV): moveToFinished, moveToDelayed,
  retryJob, moveJobFromActiveToWait.

  KEYS     the queue's: wait active prioritized events stalled limiter delayed paused meta pc marker completed failed
  ARGV[1]  key prefix of the queue
  ARGV[2]  msgpacked list of ends:
             what      "completed", "failed", "retry", "requeue" (behind what waits), "back" (before it)
             id        the job's
             token     the lock's
             due       when it may run again, ms of the caller's clock
             reason    failedReason, or the return value as JSON
             entries   list of history entries, JSON; "" is none, here and below
             fields    flat list of fields to set; what "rdl" is set to, is the time of this end
             options   of moveToFinished, msgpacked; "" where it is not called
             data      {kind, text}: what the body is from now on
  ARGV[3]  the caller's clock, ms
  ARGV[4]  turns between tenants, see turns.lua: what may run again at once waits for its tenant's turn. It stands
           before this text as turnTaking(): {open, place, close}
  ARGV[5]  "1" where a tenant's concurrency is limited

  Returns one answer per end: 0 done; below 0 as BullMQ's scripts (-1 no job, -2 no lock, -3 not active, -6 another's
  lock): nothing was changed; or {error}.
]]
local rcall = redis.call
local prefix = ARGV[1]
local now = serverNow()
local skew = now - tonumber(ARGV[3])
local meta = settings(KEYS[9])
local target = targetFor(meta[1], meta[5], KEYS[1], KEYS[8])
local isFair = ARGV[4] and ARGV[4] ~= ""
local taking, turns

-- KEYS of moveToFinished, but for the job's own.
local finishKeys = {
  target, KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], "", "", "", KEYS[11],
}

-- What is written with the end: msgpacked, "" where it is nothing.
local function fieldsOf(jobKey, finish)
  if finish[6] == "" and finish[7] == "" and finish[9] == "" then
    return ""
  end
  local fields = finish[7] == "" and {} or finish[7]
  if #finish[6] > 0 then
    local history = rcall("HGET", jobKey, "rdh")
    for _, entry in ipairs(finish[6]) do
      history = appended(history, entry)
    end
    fields[#fields + 1] = "rdh"
    fields[#fields + 1] = history
  end
  for at = 1, #fields, 2 do
    if fields[at] == "rdl" then
      fields[at + 1] = now
    end
  end
  local data = finish[9]
  if #data > 0 then
    local kept = rcall("HMGET", jobKey, "rdo", "rdk", "data")
    if not kept[1] then
      fields[#fields + 1] = "rdo"
      fields[#fields + 1] = (kept[2] or "j") .. (kept[3] or "")
    end
    for _, value in ipairs({ "rdk", data[1], "data", data[2] }) do
      fields[#fields + 1] = value
    end
  end
  if #fields == 0 then
    return ""
  end
  return cmsgpack.pack(fields)
end

local function finishAs(what, finish, jobKey)
  local isCompleted = what == "completed"
  finishKeys[11], finishKeys[12] = isCompleted and KEYS[12] or KEYS[13], jobKey
  finishKeys[13] = prefix .. "metrics:" .. what
  return moveToFinished(finishKeys, {
    finish[2], now, isCompleted and "returnvalue" or "failedReason", finish[5], what, "", prefix, finish[8],
    fieldsOf(jobKey, finish),
  })
end

local function again(finish, jobKey)
  local id, token = finish[2], finish[3]
  -- The caller's clock was cut to whole milliseconds: one more, so that no retry is early by a part of one.
  local delay = math.max(0, finish[4] + skew - now + 1)
  if finish[4] + skew <= now then
    delay = 0
  end
  local isRequeue = finish[1] == "requeue"
  local fields = fieldsOf(jobKey, finish)
  if delay > 0 then
    return moveToDelayed(
      { KEYS[11], KEYS[2], KEYS[3], KEYS[7], jobKey, KEYS[4], KEYS[9], KEYS[5], target, KEYS[6], KEYS[10] },
      { prefix, now, id, token, delay, isRequeue and "1" or "0", fields, "0" })
  end
  local delayedKey = KEYS[7]
  if isFair then
    taking = taking or turnTaking()
    turns = turns or taking.open(prefix, ARGV[4])
    -- Jobs that fall due are placed by whoever takes next.
    delayedKey = turns.none
    if rcall("GET", jobKey .. ":lock") == token then
      taking.place(turns, jobKey)
    end
  end
  local answer = retryJob(
    { KEYS[2], target, KEYS[8], jobKey, KEYS[9], KEYS[4], delayedKey, KEYS[3], KEYS[10], KEYS[11], KEYS[5] },
    { prefix, now, "LPUSH", id, token, fields })
  if answer == 0 and isRequeue then
    rcall("HINCRBY", jobKey, "atm", -1)
  end
  return answer
end

local function backToFront(finish, jobKey)
  keepPlaceInReach(prefix, jobKey)
  local answer = moveJobFromActiveToWait(
    { KEYS[2], target, KEYS[5], KEYS[8], KEYS[9], KEYS[6], KEYS[3], KEYS[11], KEYS[4] },
    { finish[2], finish[3], jobKey })
  if answer < 0 then
    return answer
  end
  local fields = fieldsOf(jobKey, finish)
  if fields ~= "" then
    rcall("HSET", jobKey, unpack(cmsgpack.unpack(fields)))
  end
  return 0
end

local function settle(finish)
  local jobKey = prefix .. finish[2]
  local what = finish[1]
  if what == "back" then
    return backToFront(finish, jobKey)
  end
  if what == "retry" or what == "requeue" then
    return again(finish, jobKey)
  end
  local answer = finishAs(what, finish, jobKey)
  if answer == -4 or answer == -9 then
    finish[5] = answer == -4 and "it has children that are not done" or "a child of it has failed"
    return finishAs("failed", finish, jobKey)
  end
  return answer
end

local answers = {}
for number, finish in ipairs(cmsgpack.unpack(ARGV[2])) do
  answers[number] = guarded(settle, finish)
end
if turns then
  taking.close(turns)
end
if isFair and ARGV[5] == "1" then
  local aside = rcall("HGET", prefix .. "redrive:turns", "aside")
  if aside == "2" and not isHeld(KEYS[9], KEYS[2]) then
    -- Its tenant may start another one: whoever is idle looks.
    rcall("ZADD", KEYS[11], 0, "0")
  end
end
return answers
