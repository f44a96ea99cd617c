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

-- What this script has kept so far, by key: written at its end in one command each, which is what a write costs most.
local kept, keptKeys, expiring = {}, {}, {}

local function read(key)
  local found = kept[key] or rcall("GET", key)
  return found and cmsgpack.unpack(found) or nil
end

-- `base`: before the keys of one queue. Records that will expire stand in a sorted set, by when.
local function keep(base, name, before, record)
  local key = base .. "k:" .. name
  if not kept[key] then
    keptKeys[#keptKeys + 1] = key
  end
  kept[key] = cmsgpack.pack(record)
  if record[7] then
    expiring[name] = record[7]
  elseif expiring[name] or (before and before[7]) then
    expiring[name] = false
  end
end

-- Everything that was kept. The last step of a script that keeps anything.
local function write(base)
  local sets, adds, removes, texts = {}, {}, {}, {}
  for _, key in ipairs(keptKeys) do
    sets[#sets + 1] = key
    sets[#sets + 1] = kept[key]
  end
  for name, at in pairs(expiring) do
    if at then
      -- Redis would turn each number into text anew, the dear way; those of one call are few.
      texts[at] = texts[at] or string.format("%.0f", at)
      adds[#adds + 1] = texts[at]
      adds[#adds + 1] = name
    else
      removes[#removes + 1] = name
    end
  end
  if #sets > 0 then
    rcall("MSET", unpack(sets))
  end
  if #adds > 0 then
    rcall("ZADD", base .. "x", unpack(adds))
  end
  if #removes > 0 then
    rcall("ZREM", base .. "x", unpack(removes))
  end
end

local function isExpired(record)
  return record[7] and record[7] <= now
end
