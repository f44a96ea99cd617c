--[[
  Counts one queue. BullMQ's getCounts knows neither which delayed jobs are due nor which active ones have lost their
  lock.

  KEYS     the queue's: wait active prioritized delayed paused meta
  ARGV[1]  key prefix of the queue

  Returns {whether the queue is there, ready, scheduled, leased, ms of the oldest that is ready or 0}.
]]
local rcall = redis.call
local prefix = ARGV[1]
local now = serverNow()
local held = 0
local unheld = 0
for _, id in ipairs(rcall("LRANGE", KEYS[2], 0, -1)) do
  if rcall("EXISTS", prefix .. id .. ":lock") == 1 then
    held = held + 1
  else
    unheld = unheld + 1
  end
end
local due = rcall("ZCOUNT", KEYS[4], 0, (now + 1) * 0x1000 - 1)
local waiting = rcall("LLEN", KEYS[1]) + rcall("LLEN", KEYS[5]) + rcall("ZCARD", KEYS[3])
local oldest = 0
local first = rcall("LINDEX", KEYS[1], -1) or rcall("LINDEX", KEYS[5], -1) or rcall("ZRANGE", KEYS[3], 0, 0)[1]
if first then
  oldest = tonumber(rcall("HGET", prefix .. first, "timestamp")) or 0
end
local isThere = rcall("EXISTS", KEYS[6])
return { isThere, waiting + due + unheld, rcall("ZCARD", KEYS[4]) - due, held, oldest }
