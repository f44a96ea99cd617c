--[[
  A process of redrive says that its workers live. BullMQ has no script for that: it knows a worker by its locks alone.

  KEYS     the queue's: workers suspects
  ARGV[1]  the process
  ARGV[2]  for how many ms this holds; 0: it is over
  ARGV[3]  ms after which the dead are forgotten
  ARGV[4]  msgpacked list of its workers' names

  Returns 1.
]]
local now = serverNow()
for _, worker in ipairs(cmsgpack.unpack(ARGV[4])) do
  redis.call("ZADD", KEYS[1], now + tonumber(ARGV[2]), ARGV[1] .. "|" .. worker)
end
if tonumber(ARGV[2]) > 0 then
  redis.call("HDEL", KEYS[2], ARGV[1])
end
local forgotten = redis.call("ZRANGEBYSCORE", KEYS[1], "-inf", now - tonumber(ARGV[3]), "LIMIT", 0, 100)
for _, member in ipairs(forgotten) do
  redis.call("ZREM", KEYS[1], member)
  redis.call("HDEL", KEYS[2], string.match(member, "^([^|]*)"))
end
return 1
