--[[
  Hands out at most so many jobs, each as BullMQ's moveToActive does: locked, counted, in "active".

  moveToActive(KEYS, ARGV) of the package stands before this text.

  KEYS     the queue's: wait active prioritized events stalled limiter delayed paused meta pc marker
           (the eleven of moveToActive)
  ARGV[1]  key prefix of the queue
  ARGV[2]  at most how many
  ARGV[3]  msgpacked options of moveToActive: token, lockDuration, name
  ARGV[4]  no more jobs once those taken have so many bytes

  Returns {server's ms, wait ms until the rate limit allows more or 0, next due ms or 0, is paused or full,
           {id, fields}, {id, fields}, ...}.
]]
local keys = { unpack(KEYS) }
keys[1] = targetOf(KEYS[9], KEYS[1], KEYS[8])
local now = serverNow()
local taken = { now, 0, 0, 0 }
local size = 0
for _ = 1, tonumber(ARGV[2]) do
  local moved = guarded(moveToActive, keys, { ARGV[1], now, ARGV[3] })
  if moved["err"] then
    if #taken == 4 then
      return moved
    end
    break
  end
  if type(moved[1]) ~= "table" then
    taken[2] = moved[3]
    taken[3] = math.floor(tonumber(moved[4]) or 0)
    if taken[2] == 0 and taken[3] == 0 and isHeld(KEYS[9], KEYS[2]) then
      taken[4] = 1
    end
    break
  end
  taken[#taken + 1] = { moved[2], moved[1] }
  for place, value in ipairs(moved[1]) do
    size = size + #value
    -- BullMQ marks a job to be failed that has stalled too often. Here the starts count, and the last one is a letter.
    if value == "defa" and place % 2 == 1 then
      redis.call("HDEL", ARGV[1] .. moved[2], "defa")
    end
  end
  if size > tonumber(ARGV[4]) then
    break
  end
end
return taken
