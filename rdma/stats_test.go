package rdma

import (
	"reflect"
	"testing"
)

// TestStatsAdd: a sum counts every counter, each by itself.
func TestStatsAdd(t *testing.T) {
	var a, b, want Stats
	va, vb, vw := reflect.ValueOf(&a).Elem(), reflect.ValueOf(&b).Elem(), reflect.ValueOf(&want).Elem()
	for i := range va.NumField() {
		va.Field(i).SetUint(uint64(1000 + i))
		vb.Field(i).SetUint(uint64(1 + 7*i))
		vw.Field(i).SetUint(uint64(1001 + 8*i))
	}
	if a.add(&b); a != want {
		t.Errorf("%+v\nwant %+v", a, want)
	}
}
