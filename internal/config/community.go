package config

import (
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// wellKnown holds the communities with names at IANA, in the spelling of routers.
var wellKnown = map[string]uint32{
	"graceful-shutdown":   0xffff0000, // RFC 8326
	"accept-own":          0xffff0001, // RFC 7611
	"llgr-stale":          0xffff0006, // RFC 9494
	"no-llgr":             0xffff0007,
	"blackhole":           0xffff029a, // RFC 7999
	"no-export":           0xffffff01, // RFC 1997
	"no-advertise":        0xffffff02,
	"no-export-subconfed": 0xffffff03,
	"no-peer":             0xffffff04, // RFC 3765
}

// WellKnownCommunities returns the names that ParseCommunity accepts, in order.
func WellKnownCommunities() []string { return slices.Sorted(maps.Keys(wellKnown)) }

// ParseCommunity parses an RFC 1997 community: two numbers of 16 bits, or a well-known name.
func ParseCommunity(text string) (uint32, error) {
	if c, ok := wellKnown[text]; ok {
		return c, nil
	}
	parts, ok := numbers(text, 2, 16)
	if !ok {
		return 0, errors.New("not a community: two numbers up to 65535, such as 64512:1, or one of " +
			strings.Join(WellKnownCommunities(), ", "))
	}
	return parts[0]<<16 | parts[1], nil
}

// ParseLargeCommunity parses an RFC 8092 community: three numbers of 32 bits.
func ParseLargeCommunity(text string) ([3]uint32, error) {
	parts, ok := numbers(text, 3, 32)
	if !ok {
		return [3]uint32{}, errors.New("not a large community: three numbers up to 4294967295, such as 64512:1:2")
	}
	return [3]uint32(parts), nil
}

// numbers parses n unsigned decimals separated by colons.
func numbers(text string, n, bits int) ([]uint32, bool) {
	words := strings.Split(text, ":")
	if len(words) != n {
		return nil, false
	}
	parts := make([]uint32, n)
	for i, w := range words {
		u, err := strconv.ParseUint(w, 10, bits)
		if err != nil {
			return nil, false
		}
		parts[i] = uint32(u)
	}
	return parts, true
}
