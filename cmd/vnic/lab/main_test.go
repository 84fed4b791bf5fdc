package lab_test

import (
	"testing"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
)

func TestMain(m *testing.M) { vnictest.Main(m) }
