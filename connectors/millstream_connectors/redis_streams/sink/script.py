"""The sink's scripts, which the server runs in one step: either everything is stored, or nothing.

A script runs exclusively, and the server writes its changes to the log as one transaction. An error in the middle does
not roll back, so everything that could fail is checked before the first record: the lane's owner, the types of the
keys, and, by setting the owner again, whether the position may be written. The server checks its memory limit before a
script begins.

Above it: the lane. Below it: Lua in Redis 7 or Valkey.
"""

from __future__ import annotations

from millstream.redis.client import script_of

OWN = script_of("""
-- KEYS: position.  ARGV: the owner that was seen, the new owner, its epoch, and for a position that is not there yet:
-- run, sequence, record.  Returns the position as it is from here on; nothing where another owner was there.
local seen = redis.call('HGET', KEYS[1], 'owner')
if (seen or '') ~= ARGV[1] then return {} end
if not seen then
  redis.call('HSET', KEYS[1], 'run', ARGV[4], 'sequence', ARGV[5], 'record', ARGV[6], 'frame', '')
end
redis.call('HSET', KEYS[1], 'owner', ARGV[2], 'epoch', ARGV[3])
return redis.call('HGETALL', KEYS[1])
""")

COMMIT = script_of("""
-- KEYS: position, then the stream, or the key of each record.
-- ARGV: owner, mode, sequence, record, frame, entries to keep or milliseconds to live or '';
--       then for each record how many words it has, and these; those of a hash begin with the number of fields that
--       are removed, and their names.
-- Returns what became of it: ok, or why nothing was written.
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return {'other'} end
local mode, limit = ARGV[2], ARGV[6]
if mode ~= 'set' then
  for i = 2, #KEYS do
    local kind = redis.call('TYPE', KEYS[i]).ok
    if kind ~= 'none' and kind ~= mode then return {'kind', KEYS[i], kind} end
  end
end
redis.call('HSET', KEYS[1], 'owner', ARGV[1])
local at, key = 7, 2
while ARGV[at] do
  local last = at + tonumber(ARGV[at])
  if mode == 'stream' then
    if limit ~= '' then
      redis.call('XADD', KEYS[2], 'MAXLEN', '~', limit, '*', unpack(ARGV, at + 1, last))
    else
      redis.call('XADD', KEYS[2], '*', unpack(ARGV, at + 1, last))
    end
  else
    if mode == 'hash' then
      local gone = at + 1 + tonumber(ARGV[at + 1])
      if gone > at + 1 then redis.call('HDEL', KEYS[key], unpack(ARGV, at + 2, gone)) end
      if last > gone then redis.call('HSET', KEYS[key], unpack(ARGV, gone + 1, last)) end
    else
      redis.call('SET', KEYS[key], ARGV[last])
    end
    if limit ~= '' then redis.call('PEXPIRE', KEYS[key], limit) end
    key = key + 1
  end
  at = last + 1
end
redis.call('HSET', KEYS[1], 'sequence', ARGV[3], 'record', ARGV[4], 'frame', ARGV[5])
return {'ok'}
""")
