package replay

import (
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/cmd/vnic/show"
	"github.com/falcon-vnic/vnic/device/control"
)

// state is what vnic show would have shown of a shard. Its fields are subjects of vnic show.
type state struct {
	Functions   []control.Function   `json:"functions"`
	Connections []control.Connection `json:"connections"`
	QPs         []control.QP         `json:"qps"`
	Queues      []control.Queue      `json:"queues"`
	Credits     []control.CreditNode `json:"credits"`
	Violations  []control.Violation  `json:"violations"`
	Counters    control.Counters     `json:"counters"`
}

// state returns the state of the shard.
func (x *run) state() *state {
	v, now := x.player.Shard.View(), x.tape.Now()
	st := &state{Connections: x.player.Connections(), Credits: v.Objects.CreditRoots(), Counters: x.player.Shard.Counters()}
	for _, id := range v.Functions.Present() {
		st.Functions = append(st.Functions, v.Functions.Describe(id))
		st.Connections = append(st.Connections, v.Objects.Connections(now, id)...)
		st.QPs = append(st.QPs, v.Objects.QPs(id)...)
		st.Queues = append(st.Queues, v.Objects.Queues(id)...)
		st.Credits = append(st.Credits, v.Objects.Credits(id)...)
		st.Violations = append(st.Violations, v.Objects.Violations(now, id)...)
	}
	return st
}

// subjects are what print shows, in this order. Counters are shown only if they are asked for: there are
// hundreds.
var subjects = []string{"functions", "connections", "qps", "queues", "credits", "violations", "counters"}

// of returns the part of the state that a subject names.
func (st *state) of(subject string) reflect.Value {
	return reflect.ValueOf(st).Elem().Field(slices.Index(subjects, subject))
}

// print prints all but the counters, or what is named, as vnic show does.
func (st *state) print(w io.Writer, named ...string) error {
	wanted := named
	if len(named) == 0 {
		wanted = subjects[:len(subjects)-1]
	}
	for _, name := range wanted {
		if !slices.Contains(subjects, name) {
			return fmt.Errorf("show: unknown subject %q; use one of %s", name, strings.Join(subjects, ", "))
		}
		is := st.of(name)
		if is.Len() == 0 && len(named) == 0 {
			continue
		}
		if len(named) == 0 {
			fmt.Fprintln(w)
		}
		if err := cli.PrintTable(w, func(w io.Writer) { show.Print(w, name, is.Interface()) }); err != nil {
			return err
		}
	}
	return nil
}
