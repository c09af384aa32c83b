package netns

import (
	"encoding/binary"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/nl"
)

// OwnTable makes its own socket the owner of the orphaned nftables table of family inet with the name, so that the kernel refuses all
// changes of others until release. nft(8) can do this only in late versions. It acts in the namespace of the calling thread.
func OwnTable(name string) (release func(), err error) {
	w, err := nl.OpenWriter()
	if err != nil {
		return nil, err
	}
	const owner, persist = 0x2, 0x4 // NFT_TABLE_F_OWNER, NFT_TABLE_F_PERSIST
	m := nl.NftMessage(unix.NFT_MSG_NEWTABLE, netlink.Create, nl.EncodeAttrs(
		netlink.Attribute{Type: unix.NFTA_TABLE_NAME, Data: []byte(name + "\x00")},
		netlink.Attribute{Type: unix.NFTA_TABLE_FLAGS, Data: binary.BigEndian.AppendUint32(nil, owner|persist)},
	))
	if err := w.Commit([]netlink.Message{m}); err != nil {
		w.Close()
		return nil, err
	}
	return w.Close, nil
}
