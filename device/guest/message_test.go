package guest

import (
	"bytes"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// faulty is an Asker that panics on one message.
type faulty struct{ asked int }

func (f *faulty) Put(Request) bool {
	f.asked++
	var none []byte
	return none[f.asked] == 0
}

func (f *faulty) Heartbeat(uint64, *abi.Heartbeat) bool { f.asked++; return true }

// TestParseSurvives checks that a message that causes a panic ends its session, and not the
// process.
func TestParseSurvives(t *testing.T) {
	in := abi.AppendStruct(nil, 1, &abi.Heartbeat{})
	in = abi.AppendStruct(in, 2, &abi.RegRead{Width: 4})
	in = abi.AppendStruct(in, 3, &abi.Heartbeat{})
	var f faulty
	if err := Parse(bytes.NewReader(in), &f, false); err == nil || !strings.Contains(err.Error(), "please report it: runtime error: index out of range") || f.asked != 2 {
		t.Errorf("%v after %d messages", err, f.asked)
	}
}
