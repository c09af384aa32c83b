package main

// document and the types below are the parts of SPDX 2.3 that are used, by the names of its JSON schema.
type document struct {
	SPDXVersion   string         `json:"spdxVersion"`
	DataLicense   string         `json:"dataLicense"`
	ID            string         `json:"SPDXID"`
	Name          string         `json:"name"`
	Namespace     string         `json:"documentNamespace"`
	Creation      creation       `json:"creationInfo"`
	Packages      []spdxPackage  `json:"packages"`
	Relationships []relationship `json:"relationships"`
}

type creation struct {
	Created  string   `json:"created"` // UTC, RFC 3339 without fractions
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	ID               string      `json:"SPDXID"`
	Name             string      `json:"name"`
	Version          string      `json:"versionInfo,omitempty"`
	FileName         string      `json:"packageFileName,omitempty"`
	Download         string      `json:"downloadLocation"`
	FilesAnalyzed    bool        `json:"filesAnalyzed"`
	LicenseConcluded string      `json:"licenseConcluded"`
	LicenseDeclared  string      `json:"licenseDeclared"`
	Copyright        string      `json:"copyrightText"`
	Purpose          string      `json:"primaryPackagePurpose"`
	Source           string      `json:"sourceInfo,omitempty"`
	Checksums        []checksum  `json:"checksums,omitempty"`
	References       []reference `json:"externalRefs,omitempty"`
}

type checksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type reference struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}
