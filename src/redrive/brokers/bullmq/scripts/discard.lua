--[[
  Removes waiting jobs. removeJob(KEYS, ARGV) of the package stands before this text; a job that somebody has in hand
  by now stays.

  KEYS     the queue's: repeat
  ARGV[1]  key prefix of the queue
  ARGV[2]  msgpacked list of ids

  Returns how many went.
]]
local count = 0
for _, id in ipairs(cmsgpack.unpack(ARGV[2])) do
  local isThere = redis.call("EXISTS", ARGV[1] .. id) == 1
  if isThere and removeJob({ ARGV[1] .. id, KEYS[1] }, { id, "0", ARGV[1] }) == 1 then
    count = count + 1
  end
end
return count
