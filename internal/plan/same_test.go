package plan_test

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// writer fills every part of a value, one row in each list, and gives part number odd another content.
type writer struct {
	odd, parts int
	path       string // of the odd part
}

func (w *writer) fill(path string, v reflect.Value) {
	switch {
	case v.Type() == reflect.TypeFor[netip.Addr]():
		v.Set(reflect.ValueOf(netip.AddrFrom4([4]byte{192, 0, 2, byte(w.next(path))})))
		return
	case v.Type() == reflect.TypeFor[netip.Prefix]():
		v.Set(reflect.ValueOf(netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(w.next(path))}), 32)))
		return
	case strings.HasPrefix(v.Type().Name(), "List["):
		with := v.MethodByName("With")
		rows := reflect.MakeSlice(with.Type().In(0), 1, 1)
		w.fill(path, rows.Index(0))
		v.Set(with.Call([]reflect.Value{rows, reflect.Zero(rows.Type())})[0])
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			name := v.Type().Field(i).Name
			if v.Type() == reflect.TypeFor[config.Peer]() && (name == "NodeSelectors" || name == "Overrides") {
				continue // a node's own configuration has none
			}
			w.fill(path+"."+name, v.Field(i))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		w.fill(path, v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		w.fill(path, v.Index(0))
	case reflect.Array:
		for i := range v.Len() {
			w.fill(fmt.Sprintf("%s[%d]", path, i), v.Index(i))
		}
	case reflect.String:
		v.SetString(fmt.Sprint(w.next(path)))
	case reflect.Bool:
		v.SetBool(w.next(path) == 2)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(w.next(path)))
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(w.next(path)))
	default:
		panic("no content for " + path + ", a " + v.Type().String())
	}
}

// next returns 1, and 2 for the odd part.
func (w *writer) next(path string) int {
	if w.parts++; w.parts-1 != w.odd {
		return 1
	}
	w.path = path
	return 2
}

func filled(odd int) (p *plan.NodePlan, w writer) {
	p, w.odd = &plan.NodePlan{}, odd
	w.fill("", reflect.ValueOf(p).Elem())
	return p, w
}

// TestEveryPartOfAPlanCounts changes each part of a plan and of its rows: no change may go unnoticed.
func TestEveryPartOfAPlanCounts(t *testing.T) {
	p, all := filled(-1)
	require.Greater(t, all.parts, 120)
	for odd := range all.parts {
		other, w := filled(odd)
		require.False(t, sorted.Same(p, other), w.path)
		require.False(t, sorted.Share(p, other), w.path)
		require.False(t, sorted.Same(p, other), w.path)
	}
	again, _ := filled(-1)
	require.True(t, sorted.Share(p, again))
}
