--[[
  Counts whose jobs wait in a part of a queue. BullMQ knows no tenants.

  KEYS     the queue's: prioritized
  ARGV[1]  key prefix of the queue
  ARGV[2]  the first and ARGV[3] the last of the part, as ZRANGE takes them

  Returns {virtual time, jobs looked at, {group, jobs, first place, ...}, {group, starts and the last one's ms, ...},
           whose job was started last, how many in a row}.
]]
local turns = openTurns(ARGV[1], cmsgpack.pack({ 1, {}, false }))
local found = redis.call("ZRANGE", KEYS[1], ARGV[2], ARGV[3], "WITHSCORES")
local counts, first, groups, shown = {}, {}, {}, {}

-- What is set aside has waited since its tenant's last start.
local function firstPlace(group, score)
  if score < ASIDE then
    return placeAt(turns, score)
  end
  local band = redis.call("HGET", turns.base .. "redrive:bands", group) or ""
  return tonumber(string.match(band, " (%d+)$")) or turns.now
end

for number = 1, #found, 2 do
  local group = redis.call("HGET", ARGV[1] .. found[number], "rdt") or "-"
  if not counts[group] then
    groups[#groups + 1] = group
    counts[group], first[group] = 0, firstPlace(group, tonumber(found[number + 1]))
  end
  counts[group] = counts[group] + 1
end
for _, group in ipairs(groups) do
  shown[#shown + 1] = group
  shown[#shown + 1] = counts[group]
  shown[#shown + 1] = first[group]
end
local kept, served, run, last = redis.call("HGETALL", turns.base .. "redrive:served"), {}, "0", ""
for place = 1, #kept, 2 do
  if kept[place] == "" then
    run, last = string.match(kept[place + 1], "^(%d+) (.*)$")
  else
    served[#served + 1] = kept[place]
    served[#served + 1] = kept[place + 1]
  end
end
return { turns.now, #found / 2, shown, served, last, tonumber(run) }
