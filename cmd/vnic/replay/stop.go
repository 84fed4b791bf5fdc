package replay

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/falcon-vnic/vnic/device/shard"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Values of --break, beside rules.
const (
	breakViolation = "violation"
	breakFault     = "fault"
	breakQPError   = "qp-error"
)

var breaks = []string{breakViolation, breakFault, breakQPError}

// stop says where a replay stops.
type stop struct {
	steps uint64 // at this Step; 0: none
	after int64  // so long after the first Step, ns; 0: none
	what  string // at something that --break names; "": nothing
	seen  marks  // of what, so far
	noted uint64 // violations when it was last looked for
}

// changed reports whether there may be something new to see since the last call.
func (p *stop) changed(s *shard.Shard) bool {
	if p.what == breakFault || p.what == breakQPError {
		return true
	}
	noted := uint64(0)
	for _, id := range s.View().Functions.Present() {
		noted += s.View().Objects.Noted(id)
	}
	is := noted != p.noted
	p.noted = noted
	return is
}

// whyThere is why a replay stops that was told where to stop.
const whyThere = "stopped there"

// parse reads the number of a Step, or a time.
func (p *stop) parse(text string) error {
	p.steps, p.after = 0, 0
	if n, err := strconv.ParseUint(text, 10, 64); err == nil && n > 0 {
		p.steps = n
		return nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return fmt.Errorf("%q: write the number of a Step, as 12000, or a time, as 1.5s", text)
	}
	p.after = int64(d)
	return nil
}

// parseBreak reads what a replay is to stop at.
func parseBreak(text string) (string, error) {
	known := text == "" || slices.Contains(breaks, text)
	for i := range abi.Clauses {
		known = known || abi.Clauses[i].Clause.String() == text
	}
	if !known {
		return "", fmt.Errorf("%q: write one of %s, or a rule for drivers, as DRV-602", text, strings.Join(breaks, ", "))
	}
	return text, nil
}

// stops says why the replay stops after an event, or after a Step; "": it goes on.
func (x *run) stops(p *stop, step bool) string {
	if p.what != "" && p.changed(x.player.Shard) {
		was := p.seen
		p.seen = look(x.player.Shard, p.what)
		if first := p.seen.beyond(was); first != "" {
			return first
		}
	}
	if step && (p.steps != 0 && x.tape.Steps() >= p.steps || p.after != 0 && x.tape.Now()-x.first >= p.after) {
		return whyThere
	}
	return ""
}

// marks are what a replay can stop at, in words, each with how often it was there.
type marks map[string]uint32

// beyond returns what is there more often than before; "": nothing.
func (m marks) beyond(before marks) string {
	for _, text := range slices.Sorted(maps.Keys(m)) {
		if m[text] > before[text] {
			return text
		}
	}
	return ""
}

// look looks for what --break names.
func look(s *shard.Shard, what string) marks {
	found, v := marks{}, s.View()
	for _, id := range v.Functions.Present() {
		switch what {
		case breakFault:
			if fault := v.Functions.Describe(id).Fault; fault != "" {
				found[fmt.Sprintf("%s has a fault: %s", id, fault)] = 1
			}
		case breakQPError:
			for _, q := range v.Objects.QPs(id) {
				if q.State == abi.QPStateErr.String() || q.State == abi.QPStateSQE.String() {
					found[fmt.Sprintf("queue pair %#x of %s is in state %s", q.QPN, id, q.State)] = 1
				}
			}
		default:
			for _, is := range v.Objects.Violations(0, id) {
				text := fmt.Sprintf("the driver of %s broke %s, %s", id, is.Clause, is.What)
				if is.Clause == "" {
					text = fmt.Sprintf("the driver of %s posted a wrong work request: %s", id, is.What)
				}
				if what == breakViolation || what == is.Clause {
					found[fmt.Sprintf("%s (%s %#x)", text, is.Ring, is.Queue)] += is.Count
				}
			}
		}
	}
	return found
}
