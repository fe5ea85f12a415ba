"""Scripts, which the server executes in one step: it stores all of their changes or nothing.

While a script runs, the server does nothing else. The server writes the script's changes to its log between MULTI and
EXEC. When it loads a log with a torn end, it omits changes without EXEC. So a commit is never stored partially.

Above it: the ledger and the OT store. Below it: Lua in Redis 7 or Valkey. Sequences stay far below 2^53.
"""

from __future__ import annotations

from millstream.redis.client import script_of

MAKE = script_of("""
-- KEYS: ledger.  ARGV: a new id, layout, frames of a lane in a buffer at most, bytes at most, which edges share copies.
-- Returns the ledger's id and layout, and which edges share copies in it.
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('HSET', KEYS[1], 'id', ARGV[1], 'layout', ARGV[2], 'sequence', '0', 'bytes', '0', 'shared', ARGV[5])
end
redis.call('HSET', KEYS[1], 'frames_max', ARGV[3], 'bytes_max', ARGV[4])
return redis.call('HMGET', KEYS[1], 'id', 'layout', 'shared')
""")

COMMIT = script_of("""
-- KEYS: ledger, mark, ids, counts, then frames and index of each buffer.
-- ARGV: ledger id, lane, sequence and commit id of the mark before, commit id, mark, time to live of ids in ms, pieces
--       of ids, buffers, names of the buffers, frames; then number of the buffer, name and data of each frame; the ids.
-- Returns what became of it: ok or landed, with the sequence of its mark, or why nothing was stored.
local function text(number) return string.format('%.0f', number) end
local ledger = redis.call('HMGET', KEYS[1], 'id', 'sequence', 'bytes', 'frames_max', 'bytes_max')
if ledger[1] ~= ARGV[1] then return {'gone', ledger[1] or ''} end
local lane, after = ARGV[2], tonumber(ARGV[3])
local held = redis.call('HMGET', KEYS[2], 'sequence', 'commit', 'mark')
local at = tonumber(held[1] or '0')
if at ~= after then
  if held[2] == ARGV[5] then return {'landed', text(at)} end
  return {'other', text(at), held[3] or ''}
end
if held[2] and ARGV[4] ~= '' and held[2] ~= ARGV[4] then return {'other', text(at), held[3] or ''} end

local pieces, buffers = tonumber(ARGV[8]), tonumber(ARGV[9])
local frames = tonumber(ARGV[10 + buffers])
local first_frame = 11 + buffers
local first_piece = first_frame + 3 * frames
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local bytes = tonumber(ledger[3])

-- What has expired makes room, whatever becomes of this commit.
local freed = false
while true do
  local oldest = redis.call('XRANGE', KEYS[3], '-', '+', 'COUNT', 1)[1]
  if not oldest or tonumber(oldest[2][4]) > now then break end
  redis.call('XDEL', KEYS[3], oldest[1])
  bytes, freed = bytes - #oldest[2][6], true
end
if freed then redis.call('HSET', KEYS[1], 'bytes', text(bytes)) end

local new = {}
for i = 0, frames - 1 do
  local buffer = tonumber(ARGV[first_frame + 3 * i])
  new[buffer] = (new[buffer] or 0) + 1
  bytes = bytes + #ARGV[first_frame + 3 * i + 2]
end
for i = 0, pieces - 1 do bytes = bytes + #ARGV[first_piece + i] end
for buffer, more in pairs(new) do
  local stored = tonumber(redis.call('HGET', KEYS[4], lane .. ' ' .. ARGV[9 + buffer]) or '0')
  if stored + more > tonumber(ledger[4]) then return {'full', ARGV[9 + buffer]} end
end
if frames + pieces > 0 and bytes > tonumber(ledger[5]) then return {'storage', ledger[5]} end

local sequence = tonumber(ledger[2])
for i = 0, frames - 1 do
  local place = first_frame + 3 * i
  local buffer, id = tonumber(ARGV[place]), text(sequence + 1 + i) .. '-0'
  redis.call('XADD', KEYS[3 + 2 * buffer], id, 'w', ARGV[place + 1], 'd', ARGV[place + 2])
  redis.call('XADD', KEYS[4 + 2 * buffer], id, 'l', lane, 's', text(#ARGV[place + 2]))
end
-- A commit of one frame alone has one sequence; otherwise the mark has the one behind the frames.
sequence = sequence + frames
if frames ~= 1 or pieces > 0 then sequence = sequence + 1 end
for buffer, more in pairs(new) do redis.call('HINCRBY', KEYS[4], lane .. ' ' .. ARGV[9 + buffer], more) end
for i = 0, pieces - 1 do
  redis.call(
    'XADD', KEYS[3], text(sequence) .. '-' .. i,
    't', text(now), 'e', text(now + tonumber(ARGV[7])), 'd', ARGV[first_piece + i]
  )
end
redis.call('HSET', KEYS[2], 'sequence', text(sequence), 'commit', ARGV[5], 'mark', ARGV[6])
redis.call('HSET', KEYS[1], 'sequence', text(sequence), 'bytes', text(bytes))
return {'ok', text(sequence)}
""")

TRIM = script_of("""
-- KEYS: ledger, counts.  ARGV: ledger id, then name of each buffer and the last sequence that goes.
-- A frame with the sequence of its lane's mark stays.
local function text(number) return string.format('%.0f', number) end
local ledger = redis.call('HMGET', KEYS[1], 'id', 'bytes')
if ledger[1] ~= ARGV[1] then return 'gone' end
local marks, freed = {}, 0
for i = 2, #ARGV, 2 do
  local frames, index = KEYS[1] .. ':d:' .. ARGV[i], KEYS[1] .. ':x:' .. ARGV[i]
  local gone, kept, removed = {}, false, {}
  for _, entry in ipairs(redis.call('XRANGE', index, '-', ARGV[i + 1])) do
    local id, lane = entry[1], entry[2][2]
    if marks[lane] == nil then
      marks[lane] = (redis.call('HGET', KEYS[1] .. ':p:' .. lane, 'sequence') or '0') .. '-0'
    end
    if marks[lane] == id then
      kept = true
    else
      gone[#gone + 1] = id
      removed[lane] = (removed[lane] or 0) + 1
      freed = freed + tonumber(entry[2][4])
    end
  end
  if kept then
    for _, id in ipairs(gone) do
      redis.call('XDEL', frames, id)
      redis.call('XDEL', index, id)
    end
  elseif #gone > 0 then
    local first = text(tonumber(string.match(gone[#gone], '^%d+')) + 1)
    redis.call('XTRIM', frames, 'MINID', first)
    redis.call('XTRIM', index, 'MINID', first)
  end
  for lane, count in pairs(removed) do
    local field = lane .. ' ' .. ARGV[i]
    if redis.call('HINCRBY', KEYS[2], field, -count) <= 0 then redis.call('HDEL', KEYS[2], field) end
  end
end
if freed > 0 then redis.call('HSET', KEYS[1], 'bytes', text(tonumber(ledger[2]) - freed)) end
return 'ok'
""")

LEAVE = script_of("""
-- KEYS: ledger.  ARGV: ledger id, which edges share copies from now on.
if redis.call('HGET', KEYS[1], 'id') ~= ARGV[1] then return 'gone' end
redis.call('HSET', KEYS[1], 'shared', ARGV[2])
return 'ok'
""")

REMOVE = script_of("""
-- KEYS: ledger, counts.  ARGV: name of the buffer, sequence.
local frames, index = KEYS[1] .. ':d:' .. ARGV[1], KEYS[1] .. ':x:' .. ARGV[1]
local entry = redis.call('XRANGE', index, ARGV[2], ARGV[2])[1]
if not entry then return 0 end
redis.call('XDEL', frames, entry[1])
redis.call('XDEL', index, entry[1])
redis.call('HINCRBY', KEYS[2], entry[2][2] .. ' ' .. ARGV[1], -1)
redis.call('HINCRBY', KEYS[1], 'bytes', -tonumber(entry[2][4]))
return 1
""")

PUT = script_of("""
-- KEYS: entries, revisions.  ARGV: lane, the revision it has now, entry.
-- Returns the new revision; 0 where it has another than that.
if (redis.call('HGET', KEYS[2], ARGV[1]) or '0') ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
redis.call('PUBLISH', KEYS[1], ARGV[1] .. ' ' .. ARGV[3])
return redis.call('HINCRBY', KEYS[2], ARGV[1], 1)
""")

FORGET = script_of("""
-- KEYS: entries, revisions.  ARGV: lane.
redis.call('HDEL', KEYS[1], ARGV[1])
return redis.call('HDEL', KEYS[2], ARGV[1])
""")
