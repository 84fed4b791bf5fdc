package show

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/falcon-vnic/vnic/device/control"
)

// chrome writes operations as trace events: the JSON array that ui.perfetto.dev and
// chrome://tracing read. Each operation is an asynchronous slice, because the operations of a queue
// pair overlap. The time between two steps is a slice inside that.
type chrome struct {
	w     io.Writer
	count int
	err   error
	start int64           // times are since then: a float holds too few digits of the time of day
	named map[uint32]bool // queue pairs
}

// chromeEvent is an entry of that array.
type chromeEvent struct {
	Name  string  `json:"name"`
	Cat   string  `json:"cat,omitempty"`
	Phase string  `json:"ph"`
	TS    float64 `json:"ts"` // µs
	PID   int     `json:"pid"`
	TID   uint32  `json:"tid"` // QPN
	ID    int     `json:"id,omitempty"`
	Args  any     `json:"args,omitempty"`
}

func newChrome(w io.Writer) *chrome {
	c := &chrome{w: w, named: map[uint32]bool{}}
	_, c.err = io.WriteString(w, "[")
	return c
}

func (c *chrome) put(e *chromeEvent) {
	b, err := json.Marshal(e)
	if c.err != nil || err != nil {
		return
	}
	separator := ",\n"
	if c.count == 0 {
		separator = "\n"
	}
	c.count++
	_, c.err = fmt.Fprintf(c.w, "%s%s", separator, b)
}

// name gives a process or a thread, which the other events number, a name.
func (c *chrome) name(what string, qpn uint32, name string) {
	c.put(&chromeEvent{Name: what, Phase: "M", PID: 1, TID: qpn, Args: map[string]string{"name": name}})
}

func (c *chrome) operation(o *control.Operation) error {
	if len(c.named) == 0 {
		c.start = o.Steps[0].At
		c.name("process_name", 0, o.Function)
	}
	if !c.named[o.QPN] {
		c.named[o.QPN] = true
		c.name("thread_name", o.QPN, fmt.Sprintf("QP %#x", o.QPN))
	}
	id := c.count
	at := func(name, phase string, ns int64, args any) {
		c.put(&chromeEvent{Name: name, Cat: o.Side, Phase: phase, TS: float64(ns-c.start) / 1e3, PID: 1, TID: o.QPN, ID: id, Args: args})
	}
	name, last := fmt.Sprintf("%s %d bytes", o.Op, o.Bytes), len(o.Steps)-1
	at(name, "b", o.Steps[0].At, o)
	for i := 1; i <= last; i++ {
		at(o.Steps[i].Name, "b", o.Steps[i-1].At, nil)
		at(o.Steps[i].Name, "e", o.Steps[i].At, nil)
	}
	at(name, "e", o.Steps[last].At, nil)
	return c.err
}

// end completes the array.
func (c *chrome) end() error {
	if c.err == nil {
		_, c.err = io.WriteString(c.w, "\n]\n")
	}
	return c.err
}
