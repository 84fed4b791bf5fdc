package list_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/falcon-vnic/vnic/internal/list"
)

type thing struct {
	node list.Node[thing]
	id   int
}

// TestAListHoldsWhatASliceWould compares two lists, among which things move, with slices.
func TestAListHoldsWhatASliceWould(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var lists [2]list.List[thing]
		var want [2][]*thing
		things := make([]thing, 12)
		for i := range things {
			things[i].id = i
		}
		draw := func(t *rapid.T) (*thing, int, bool) {
			x := &things[rapid.IntRange(0, len(things)-1).Draw(t, "thing")]
			l := rapid.IntRange(0, 1).Draw(t, "list")
			return x, l, x.node.On() != nil
		}
		t.Repeat(map[string]func(*rapid.T){
			"back": func(t *rapid.T) {
				x, l, in := draw(t)
				if lists[l].PushBack(&x.node, x); !in {
					want[l] = append(want[l], x)
				}
			},
			"front": func(t *rapid.T) {
				x, l, in := draw(t)
				if lists[l].PushFront(&x.node, x); !in {
					want[l] = slices.Insert(want[l], 0, x)
				}
			},
			"after": func(t *rapid.T) {
				x, l, in := draw(t)
				if len(want[l]) == 0 {
					return
				}
				at := rapid.IntRange(0, len(want[l])-1).Draw(t, "at")
				if x.node.InsertAfter(&want[l][at].node, x); !in {
					want[l] = slices.Insert(want[l], at+1, x)
				}
			},
			"move back": func(t *rapid.T) {
				x, _, in := draw(t)
				if !in {
					return
				}
				x.node.MoveBack()
				for l := range want {
					if i := slices.Index(want[l], x); i >= 0 {
						want[l] = append(slices.Delete(want[l], i, i+1), x)
					}
				}
			},
			"remove": func(t *rapid.T) {
				x, _, _ := draw(t)
				x.node.Remove()
				for l := range want {
					want[l] = slices.DeleteFunc(want[l], func(o *thing) bool { return o == x })
				}
			},
			"": func(t *rapid.T) {
				for l := range lists {
					check(t, &lists[l], want[l])
				}
			},
		})
	})
}

func check(t *rapid.T, l *list.List[thing], want []*thing) {
	var got, back []*thing
	for x := l.First(); x != nil; x = x.node.Next() {
		if x.node.On() != l {
			t.Fatalf("%d is on another list", x.id)
		}
		got = append(got, x)
	}
	for x := l.Last(); x != nil; x = x.node.Prev() {
		back = append(back, x)
	}
	slices.Reverse(back)
	if !slices.Equal(got, want) || !slices.Equal(back, want) || l.Empty() != (len(want) == 0) {
		t.Fatalf("list %v, backwards %v, want %v", ids(got), ids(back), ids(want))
	}
}

func ids(things []*thing) (out []int) {
	for _, x := range things {
		out = append(out, x.id)
	}
	return out
}

func TestListsAllocateNothing(t *testing.T) {
	var a, b list.List[thing]
	things := make([]thing, 10)
	n := testing.AllocsPerRun(100, func() {
		for i := range things {
			a.PushBack(&things[i].node, &things[i])
		}
		for x := a.First(); x != nil; x = a.First() {
			x.node.Remove()
			b.PushFront(&x.node, x)
			x.node.Remove()
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}
