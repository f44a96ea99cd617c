--[[
  Starts counted over a sliding period, as redrive.core.policy.flow.Window does it: never more than so many in any. A
  window is kept as numbers: ms of one slot, then slots and their starts in turn.

  A rate: {starts, ms of one slot, slots that count before the present one}.
]]
local function openWindow(kept, rate, now)
  local slotMs, span = rate[2], rate[3]
  local storedMs = kept[1] or slotMs
  local slots = {}
  for place = 2, #kept, 2 do
    slots[#slots + 1] = { kept[place], kept[place + 1] }
  end
  table.sort(slots, function(one, other) return one[1] < other[1] end)
  local slot = math.floor(now / slotMs)
  if storedMs ~= slotMs and #slots > 0 then
    -- `flow.window_of`: the last start may have been late in its slot, so the earlier ones count as late as that.
    local last = math.floor(((slots[#slots][1] + 1) * storedMs - 1) / slotMs)
    for _, each in ipairs(slots) do
      each[1] = math.min(last, math.floor(((each[1] + 2) * storedMs - 2) / slotMs))
    end
  end
  local window = { rate = rate, counting = {}, sum = 0 }
  -- A clock that went back stays in the last slot.
  window.slot = math.max(slot, #slots > 0 and slots[#slots][1] or slot)
  for _, each in ipairs(slots) do
    if each[1] >= window.slot - span then
      window.counting[#window.counting + 1] = each
      window.sum = window.sum + each[2]
    end
  end
  return window
end

local function countStarts(window, count)
  local last = window.counting[#window.counting]
  if last and last[1] == window.slot then
    last[2] = last[2] + count
  else
    window.counting[#window.counting + 1] = { window.slot, count }
  end
  window.sum = window.sum + count
end

-- When one more may start, in ms; 0 where it may now.
local function freeAt(window)
  local excess = window.sum - window.rate[1]
  for _, each in ipairs(excess >= 0 and window.counting or {}) do
    excess = excess - each[2]
    if excess < 0 then
      return (each[1] + window.rate[3] + 1) * window.rate[2]
    end
  end
  return 0
end

local function windowNumbers(window)
  local numbers = { window.rate[2] }
  for _, each in ipairs(window.counting) do
    numbers[#numbers + 1] = each[1]
    numbers[#numbers + 1] = each[2]
  end
  return numbers
end
