// Package keyed has what a function remembers for the keys of a call: what records read, what they write, and what of
// that counts.
//
//	entries of the call ──► stored bytes of the key ──► (a Turn: one record) ──► stored bytes ──► changes
//	                                                     Settle: if the record has succeeded
//
// Above it: the states of package udf, which convert bytes to Go's values, and the test kit. It knows bytes only. So a
// record that fails leaves nothing, whatever it has done to the values that it got.
package keyed

import (
	"fmt"

	"github.com/millstream/millstream/sdk/go/internal/wire/udfv1"
)

// TimersName is the name of the state that timers are.
const TimersName = "timers"

// TimerHolds is added to the clock of a timer that holds the watermark for its outputs.
const TimerHolds = 0x40

// StatesMax is the maximum number of states of a function: their indexes are bytes.
const StatesMax = 255

// Spec is one state of a function.
type Spec struct {
	Name string
	Kind udfv1.State_Kind
	// Codec is that of its values, ItemCodec that of the items of a map.
	Codec, ItemCodec string
	// Version is that of the values that the function writes, Oldest the lowest one that it can read.
	Version, Oldest uint32
	// TTL is the time to live of entries, in microseconds; 0: they do not expire.
	TTL   int64
	Clock udfv1.State_Clock
}

// Message is the state in Welcome.
func (s *Spec) Message() *udfv1.State {
	return &udfv1.State{
		Name: s.Name, Kind: s.Kind, Codec: s.Codec, ItemCodec: s.ItemCodec, Version: s.Version, Clock: s.Clock,
		OldestVersion: s.Oldest,
	}
}

// SpecOf is the inverse of Message, without a time to live.
func SpecOf(message *udfv1.State) *Spec {
	return &Spec{
		Name: message.GetName(), Kind: message.GetKind(), Codec: message.GetCodec(), ItemCodec: message.GetItemCodec(),
		Version: message.GetVersion(), Oldest: message.GetOldestVersion(), Clock: message.GetClock(),
	}
}

// CheckVersion returns an error for the version of an entry that the function does not know.
func (s *Spec) CheckVersion(version uint32) error {
	switch {
	case version > s.Version:
		return fmt.Errorf("state %s has values of version %d, and this function knows %d: run the function that wrote "+
			"them, or a newer one", s.Name, version, s.Version)
	case version < s.Oldest:
		return fmt.Errorf("state %s has values of version %d, and this function reads version %d and later ones: add "+
			"a step, such as udf.MigrateFrom(%d, convert)", s.Name, version, s.Oldest, version)
	}
	return nil
}

func (s *Spec) byProcessingTime() bool { return s.Clock == udfv1.State_CLOCK_PROCESSING_TIME }

func (s *Spec) hasItems() bool {
	return s.Kind == udfv1.State_KIND_MAP || s.Kind == udfv1.State_KIND_LIST || s.IsTimers()
}

// IsTimers: whether its entries are timers, which do not come with calls. So it is not known which ones there are.
func (s *Spec) IsTimers() bool { return s.Kind == udfv1.State_KIND_TIMER }

// Same: whether both are stored in the same way, under the same name.
func (s *Spec) Same(other *Spec) bool {
	return s == other || (s.Name == other.Name && s.Kind == other.Kind && s.Codec == other.Codec &&
		s.ItemCodec == other.ItemCodec)
}
