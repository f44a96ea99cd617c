--[[
  What the scripts of the claim store share. Stands before each of them.

  A record is a msgpacked list; what is not there is false:
    1 state (R received, P processing, D processed, F failed, X dead-lettered), 2 attempts, 3 cycle, 4 token, 5 owner,
    6 lease until, 7 expires at, 8 digest, 9 updated at, 10 lost worker, 11 lost at, 12 mark of the claim
  Decides as redrive.core.idempotency does; the contract suite holds both to it.
]]
local rcall = redis.call
local time = rcall("TIME")
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local function read(key)
  local kept = rcall("GET", key)
  return kept and cmsgpack.unpack(kept) or nil
end

-- `base`: before the keys of one queue. Records that will expire stand in a sorted set, by when.
local function keep(base, name, before, record)
  rcall("SET", base .. "k:" .. name, cmsgpack.pack(record))
  if record[7] then
    rcall("ZADD", base .. "x", record[7], name)
  elseif before and before[7] then
    rcall("ZREM", base .. "x", name)
  end
end

local function isExpired(record)
  return record[7] and record[7] <= now
end
