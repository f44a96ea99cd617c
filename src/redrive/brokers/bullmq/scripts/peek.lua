--[[
  Shows the first waiting jobs of a queue whole, in the order in which they will be handed out. BullMQ's getJobs knows
  one state at a time.

  KEYS     the queue's: wait active prioritized delayed paused
  ARGV[1]  key prefix of the queue
  ARGV[2]  at most how many

  Returns {id, fields}, {id, fields}, ...
]]
local rcall = redis.call
local prefix = ARGV[1]
local limit = tonumber(ARGV[2])
local now = serverNow()
local ids = {}
local function take(found)
  for _, id in ipairs(found) do
    if #ids < limit then
      ids[#ids + 1] = id
    end
  end
end
local function fromTheRight(key)
  local found = rcall("LRANGE", key, -limit, -1)
  local turned = {}
  for number = #found, 1, -1 do
    turned[#turned + 1] = found[number]
  end
  return turned
end
local urgent, others = {}, {}
for _, id in ipairs(fromTheRight(KEYS[2])) do
  if rcall("EXISTS", prefix .. id .. ":lock") == 0 then
    urgent[#urgent + 1] = id
  end
end
take(urgent)
take(fromTheRight(KEYS[1]))
take(fromTheRight(KEYS[5]))
for _, id in ipairs(rcall("ZRANGEBYSCORE", KEYS[4], 0, (now + 1) * 0x1000 - 1, "LIMIT", 0, limit)) do
  local priority = tonumber(rcall("HGET", prefix .. id, "priority")) or 0
  table.insert(priority == 0 and ids or others, id)
end
take(rcall("ZRANGE", KEYS[3], 0, limit - 1))
take(others)
take(rcall("ZRANGEBYSCORE", KEYS[4], (now + 1) * 0x1000, "+inf", "LIMIT", 0, limit))
local shown = {}
for number, id in ipairs(ids) do
  if number > limit then
    break
  end
  shown[number] = { id, rcall("HGETALL", prefix .. id) }
end
return shown
