package effect

import (
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/internal/allocs"
)

type mark struct {
	to *[]int
	n  int
}

func (m *mark) Do() { *m.to = append(*m.to, m.n) }

func TestEffectsAreDoneInOrderAndOnce(t *testing.T) {
	var done []int
	var asked, out List
	asked.Add(&mark{&done, 1})
	asked.Add(Func(func() { done = append(done, 2) }))
	out.Take(&asked)
	asked.Add(&mark{&done, 3})
	out.Take(&asked)
	if len(done) != 0 || len(asked.Waiting()) != 0 || len(out.Waiting()) != 3 {
		t.Fatal("done before its time, or not handed on", done, asked, out)
	}
	out.Do()
	out.Do()
	if !slices.Equal(done, []int{1, 2, 3}) {
		t.Fatal(done)
	}
}

func TestEffectsAllocateNothing(t *testing.T) {
	var asked, out List
	done := make([]int, 0, 4)
	m := &mark{&done, 1}
	if n := allocs.PerRun(100, func() {
		done = done[:0]
		asked.Add(m)
		out.Take(&asked)
		out.Do()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
