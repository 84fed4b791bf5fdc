package ports

import (
	"testing"

	"github.com/falcon-vnic/vnic/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }
