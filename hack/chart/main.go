// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Command chart packages the Helm chart of charts/haulout. The chart shares files with
// artifacts/base through links; the package contains copies of them.
package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/chart/v2/util"
)

func main() {
	chart := pflag.String("chart", "charts/haulout", "folder of the chart")
	out := pflag.String("out", "", "folder for the package (required)")
	version := pflag.String("version", "", "version of the program and of the chart, such as v0.1.0 (required)")
	appVersion := pflag.String("app-version", "", "default tag of the image; empty means the version")
	pflag.Parse()
	path, err := pack(*chart, *out, *version, *appVersion)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(path)
}

// pack writes the package of a chart to a folder, and returns its path.
func pack(folder, out, version, appVersion string) (string, error) {
	if out == "" || version == "" {
		return "", errors.New("--out and --version are required")
	}
	chart, err := loader.LoadDir(folder)
	if err != nil {
		return "", fmt.Errorf("load the chart %s: %w", folder, err)
	}
	chart.Metadata.Version = chartVersion(version)
	chart.Metadata.AppVersion = version
	if appVersion != "" {
		chart.Metadata.AppVersion = appVersion
	}
	if err := chart.Validate(); err != nil {
		return "", fmt.Errorf("the version %q: %w", version, err)
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return "", err
	}
	return util.Save(chart, out)
}

// chartVersion converts the version of the program to a semantic version. A build without a tag has
// only a commit.
func chartVersion(version string) string {
	if number, tagged := strings.CutPrefix(version, "v"); tagged {
		return number
	}
	return "0.0.0-" + version
}
