package rdma

import (
	"reflect"
	"testing"
)

// TestStatsAdd: a sum counts every counter, each by itself.
func TestStatsAdd(t *testing.T) {
	var a, b, want Stats
	counters := func(s *Stats) (list []reflect.Value) {
		v := reflect.ValueOf(s).Elem()
		for _, f := range reflect.VisibleFields(v.Type()) {
			if !f.Anonymous {
				list = append(list, v.FieldByIndex(f.Index))
			}
		}
		return list
	}
	va, vb, vw := counters(&a), counters(&b), counters(&want)
	for i := range va {
		va[i].SetUint(uint64(1000 + i))
		vb[i].SetUint(uint64(1 + 7*i))
		vw[i].SetUint(uint64(1001 + 8*i))
	}
	if a.add(&b); a != want {
		t.Errorf("%+v\nwant %+v", a, want)
	}
}
