package udf

import (
	"sync"
	"sync/atomic"

	"github.com/millstream/millstream/sdk/go/internal/keyed"
)

// lane processes the records of one stream, with the configured concurrency across all calls.
type lane struct {
	mutex   sync.Mutex
	pending []*job
	running int
	most    int
}

// job is a call: run is called for each of its records, done when all of them have returned.
type job struct {
	next, records int
	left          atomic.Int64
	run           func(index int)
	done          func()
}

func (l *lane) begin(records int, run func(index int), done func()) {
	if records == 0 {
		done()
		return
	}
	begun := &job{records: records, run: run, done: done}
	begun.left.Store(int64(records))
	l.mutex.Lock()
	l.pending = append(l.pending, begun)
	workers := min(records, l.most-l.running)
	l.running += workers
	l.mutex.Unlock()
	for range workers {
		go l.work()
	}
}

// each calls call for each record of a call, and stores the results in failures; then it calls done. Without
// concurrency, a call is one piece of work, because the lock would cost more than a short function.
func (l *lane) each(failures []error, call func(index int) error, done func()) {
	if l.most == 1 {
		l.begin(1, func(int) { each(failures, call) }, done)
		return
	}
	l.begin(len(failures), func(i int) { failures[i] = guard(func() error { return call(i) }) }, done)
}

// eachChain is each for a function with states: records of one key are processed one after another.
func (l *lane) eachChain(failures []error, states *keyed.Call, call func(index int) error, done func()) {
	if l.most == 1 {
		l.each(failures, call, done)
		return
	}
	chains := states.Chains()
	l.begin(len(chains), func(chain int) {
		for _, i := range chains[chain] {
			failures[i] = guard(func() error { return call(i) })
		}
	}, done)
}

// work processes records one by one, those of the oldest call first, until there are none.
func (l *lane) work() {
	for {
		l.mutex.Lock()
		if len(l.pending) == 0 {
			l.running--
			l.mutex.Unlock()
			return
		}
		current := l.pending[0]
		index := current.next
		current.next++
		if current.next == current.records {
			l.pending[0] = nil
			l.pending = l.pending[1:]
		}
		l.mutex.Unlock()
		current.run(index)
		if current.left.Add(-1) == 0 {
			current.done()
		}
	}
}

// held bounds the unanswered calls of a stream, and their bytes.
type held struct {
	mutex        sync.Mutex
	freed        sync.Cond
	calls, bytes int
	callsMax     int
}

func newHeld(callsMax int) *held {
	h := &held{callsMax: callsMax}
	h.freed.L = &h.mutex
	return h
}

// acquire waits for space. A call larger than the whole space is admitted alone.
func (h *held) acquire(size int) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	for h.calls == h.callsMax || (h.calls > 0 && h.bytes+size > messageBytesMax) {
		h.freed.Wait()
	}
	h.calls++
	h.bytes += size
}

func (h *held) release(size int) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.calls--
	h.bytes -= size
	h.freed.Broadcast()
}

// wait returns when every call is answered.
func (h *held) wait() {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	for h.calls > 0 {
		h.freed.Wait()
	}
}
