package sim

import (
	"bytes"
	"encoding/binary"
	"errors"

	"github.com/falcon-vnic/vnic/falcon"
)

// ULP is a small upper layer for tests. Every payload starts with an 8-byte key and continues with
// bytes derived from it, so that the receiver can check each byte. The key of a push and of a pull
// request is its tag. A pull response carries the key of its request.
//
// Without hooks it acknowledges every push and answers every pull in full, at once.
type ULP struct {
	// OnPush answers EvPush; nil: AckPush. key is 0 if the payload is shorter than a key.
	OnPush func(now falcon.Time, ev *falcon.Event, key uint64)
	// OnPull answers EvPull; nil: RespondPull with the length requested.
	OnPull func(now falcon.Time, ev *falcon.Event, key uint64)
	// OnEvent sees every event first.
	OnEvent func(now falcon.Time, ev *falcon.Event)
	// FillError makes Fill fail.
	FillError func(kind falcon.TxnKind, tag uint64) bool

	Events  []Recorded // every event, if Record
	Record  bool
	Corrupt int // payloads whose bytes did not match their key
}

// Recorded is an event with the time when it was taken.
type Recorded struct {
	At falcon.Time
	falcon.Event
	Key uint64 // of the payload
}

// KeyBytes is the length of a key, and the shortest payload that carries one.
const KeyBytes = 8

var errFill = errors.New("sim: fill refused")

// Fill implements falcon.ULP.
func (u *ULP) Fill(_ *falcon.Conn, kind falcon.TxnKind, tag uint64, dst []byte) (int, error) {
	if u.FillError != nil && u.FillError(kind, tag) {
		return 0, errFill
	}
	WritePayload(dst, tag)
	return len(dst), nil
}

// HandleEvent implements Handler.
func (u *ULP) HandleEvent(now falcon.Time, ev *falcon.Event) {
	key, ok := CheckPayload(ev.Data)
	if !ok {
		u.Corrupt++
	}
	if u.Record {
		r := Recorded{At: now, Event: *ev, Key: key}
		r.Data = nil
		u.Events = append(u.Events, r)
	}
	if u.OnEvent != nil {
		u.OnEvent(now, ev)
	}
	switch ev.Kind {
	case falcon.EvPush:
		if u.OnPush != nil {
			u.OnPush(now, ev, key)
			return
		}
		ev.Conn.AckPush(now, ev.RSN)
	case falcon.EvPull:
		if u.OnPull != nil {
			u.OnPull(now, ev, key)
			return
		}
		_ = ev.Conn.RespondPull(now, ev.RSN, key, ev.Length)
	}
}

// WritePayload fills b with key and the bytes derived from it.
func WritePayload(b []byte, key uint64) {
	if len(b) < KeyBytes {
		clear(b)
		return
	}
	for v := key; len(b) > 0; v = Mix(v) {
		var word [KeyBytes]byte
		binary.BigEndian.PutUint64(word[:], v)
		b = b[copy(b, word[:]):]
	}
}

// CheckPayload returns the key of a payload and whether every byte matches it. A payload shorter
// than a key must be all zero and has key 0.
func CheckPayload(b []byte) (key uint64, ok bool) {
	if len(b) < KeyBytes {
		for _, v := range b {
			if v != 0 {
				return 0, false
			}
		}
		return 0, true
	}
	key = binary.BigEndian.Uint64(b)
	for v := key; len(b) > 0; v = Mix(v) {
		var word [KeyBytes]byte
		binary.BigEndian.PutUint64(word[:], v)
		n := min(len(b), KeyBytes)
		if !bytes.Equal(b[:n], word[:n]) {
			return key, false
		}
		b = b[n:]
	}
	return key, true
}
