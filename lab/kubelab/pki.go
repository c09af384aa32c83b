package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// makePKI writes what one control plane needs into dir: an authority, the server's certificate and key for the given names
// and addresses, and the key that signs the tokens of ServiceAccounts.
func makePKI(dir string, names []string) error {
	var authority, server, tokens *ecdsa.PrivateKey
	for _, key := range []**ecdsa.PrivateKey{&authority, &server, &tokens} {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return err
		}
		*key = k
	}
	now := time.Now()
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kubelab"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(1, 0, 0),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, BasicConstraintsValid: true, IsCA: true,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "kube-apiserver", Organization: []string{"system:masters"}},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, // it is kubelets' client
	}
	for _, n := range names {
		if ip := net.ParseIP(n); ip != nil {
			leaf.IPAddresses = append(leaf.IPAddresses, ip)
		} else {
			leaf.DNSNames = append(leaf.DNSNames, n)
		}
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, authority.Public(), authority)
	if err != nil {
		return err
	}
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, ca, server.Public(), authority)
	if err != nil {
		return err
	}
	serverDER, err := x509.MarshalECPrivateKey(server)
	if err != nil {
		return err
	}
	tokensDER, err := x509.MarshalECPrivateKey(tokens)
	if err != nil {
		return err
	}
	// The authority comes last: where its file is, all of them are.
	for _, f := range []struct {
		name, kind string
		der        []byte
	}{
		{serverCert, "CERTIFICATE", leafDER},
		{serverKey, "EC PRIVATE KEY", serverDER},
		{tokensKey, "EC PRIVATE KEY", tokensDER},
		{caCert, "CERTIFICATE", caDER},
	} {
		text := pem.EncodeToMemory(&pem.Block{Type: f.kind, Bytes: f.der})
		if err := os.WriteFile(filepath.Join(dir, f.name), text, 0o600); err != nil {
			return err
		}
	}
	return nil
}
