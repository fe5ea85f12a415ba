package udf

import (
	"errors"
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/millstream/millstream/sdk/go/internal/wire/udfv1"
)

const (
	reasonBytesMax = 1000
	// Maximum bytes of one stack trace, and of all in an answer: further failures have no trace.
	detailBytesMax  = 16 << 10
	detailsBytesMax = 1 << 20
)

// panicked is the value with which a function panicked.
type panicked struct {
	value any
	stack string
}

func (p *panicked) Error() string { return fmt.Sprintf("panic: %v", p.value) }

// errGoexit is the failure of a function that has ended its goroutine.
var errGoexit = errors.New("the function called runtime.Goexit (as testing.T.FailNow does): return an error instead")

// left returns the failure of a call that has not returned: a panic with this value, or the end of its goroutine.
func left(value any) error {
	if value == nil {
		return errGoexit
	}
	return &panicked{value, string(debug.Stack())}
}

// guard converts a panic, or the end of the goroutine, to an error. Nothing stops runtime.Goexit, so the call has a
// goroutine of its own.
func guard(call func() error) error {
	result := make(chan error, 1)
	go func() {
		returned := false
		var err error
		defer func() {
			if !returned {
				err = left(recover())
			}
			result <- err
		}()
		err = sound(call())
		returned = true
	}()
	return <-result
}

// each calls call for 0 to len(failures)-1 and stores the results. A panic, or the end of the goroutine, is the failure
// of its own index only.
func each(failures []error, call func(i int) error) {
	for next := 0; next < len(failures); {
		next = some(failures, next, call)
	}
}

// some continues until the end or the first call that does not return, and returns the index to continue from: guarding
// every call would cost as much as a short function.
func some(failures []error, next int, call func(i int) error) int {
	after := make(chan int, 1)
	go func() {
		defer func() {
			if next < len(failures) {
				failures[next] = left(recover())
				next++
			}
			after <- next
		}()
		for ; next < len(failures); next++ {
			failures[next] = sound(call(next))
		}
	}()
	return <-after
}

// sound returns err, or another error if err cannot be read: a method of a nil pointer to an error of the function's own
// panics.
func sound(err error) (readable error) {
	if err == nil {
		return nil
	}
	defer func() {
		if value := recover(); value != nil {
			readable = fmt.Errorf("the function returned an error (%T) that cannot be read: panic: %v", err, value)
		}
	}()
	_ = err.Error()
	_ = errors.Is(err, errGoexit)
	return err
}

// told returns the error on one line, and the full text if there is more.
func told(err error) (reason, detail string) {
	text := valid(strings.TrimSpace(err.Error()))
	reason, _, several := strings.Cut(text, "\n")
	reason = clip(strings.TrimSpace(reason), reasonBytesMax)
	if reason == "" {
		reason = fmt.Sprintf("%T without a message", err)
	}
	if several {
		detail = text
	}
	var panicked *panicked
	if errors.As(err, &panicked) {
		detail = text + "\n" + valid(panicked.stack)
	}
	return reason, clip(detail, detailBytesMax)
}

// wholeCall formats the error of a call as a whole, with the message first.
func wholeCall(err error) string {
	reason, detail := told(err)
	if detail == "" {
		return reason
	}
	return reason + "\n" + detail
}

// clip truncates a text that is too long, between two characters.
func clip(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "..."
}

// valid replaces bytes that are not UTF-8, which a protobuf string cannot contain.
func valid(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

// outcomes collects the outcomes of the records of a call that were not processed normally.
type outcomes struct {
	sink    bool
	details int
	items   []*udfv1.Outcome
}

// errHeldUp is the failure of a record that was not processed, because an earlier one of its key has failed.
var errHeldUp = errors.New("held up")

// isDecided: after an outcome with this error, the record is not processed again.
func isDecided(err error) bool {
	return !errors.As(err, &Retry{}) &&
		(errors.As(err, &DeadLetter{}) || errors.As(err, &Drop{}) || errors.As(err, &Misfit{}))
}

func (o *outcomes) add(index int, err error) {
	outcome := &udfv1.Outcome{Index: uint32(index)}
	if err == errHeldUp {
		outcome.Result = udfv1.Outcome_RESULT_HELD_UP
		o.items = append(o.items, outcome)
		return
	}
	var retry Retry
	var deadLetter DeadLetter
	var drop Drop
	var fallback Fallback
	switch {
	case errors.As(err, &retry):
		outcome.Result, outcome.DelayUs = udfv1.Outcome_RESULT_RETRY, uint64(max(0, retry.Delay.Microseconds()))
	case errors.As(err, &deadLetter):
		outcome.Result = udfv1.Outcome_RESULT_DEAD_LETTER
	case errors.As(err, &drop):
		outcome.Result = udfv1.Outcome_RESULT_DROP
	case errors.As(err, &fallback) && o.sink:
		outcome.Result = udfv1.Outcome_RESULT_FALLBACK
	case errors.As(err, &fallback):
		outcome.Result = udfv1.Outcome_RESULT_ERROR
		err = errors.New("Fallback is only for sinks; in a map return DeadLetter{Reason: ...}")
	case errors.As(err, &Misfit{}):
		// It would not fit at another attempt either.
		outcome.Result, outcome.Code = udfv1.Outcome_RESULT_DEAD_LETTER, misfitCode
	default:
		outcome.Result = udfv1.Outcome_RESULT_ERROR
	}
	if outcome.Result != udfv1.Outcome_RESULT_ERROR && err.Error() == "" {
		// The function may omit the reason.
		o.items = append(o.items, outcome)
		return
	}
	outcome.Reason, outcome.Detail = told(err)
	if o.details += len(outcome.Detail); o.details > detailsBytesMax {
		outcome.Detail = ""
	}
	o.items = append(o.items, outcome)
}

// gone: the stream has ended, and no call waits for the results of its records.
func gone(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}
