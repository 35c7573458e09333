#!/bin/sh
# Downloads SwiftShader, a software Vulkan driver that wgpu and Dawn both take, from the npm package
# that a headless Chromium comes in. It serves tests where Dawn lists no adapter.
#
#   sh scripts/get_swiftshader.sh FOLDER
#   VK_DRIVER_FILES=FOLDER/vk_swiftshader_icd.json make test-dawn
#
# Needs npm and node, about 80 MB while it runs, and leaves 15 MB.
set -eu
folder=${1:?usage: get_swiftshader.sh FOLDER}
package=@sparticuz/chromium@147.0.0
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
mkdir -p "$folder"
archive=$(cd "$temporary" && npm pack --silent "$package")
tar -xzf "$temporary/$archive" -C "$temporary" package/bin/swiftshader.tar.br
node -e 'process.stdin.pipe(require("zlib").createBrotliDecompress()).pipe(process.stdout)' \
    <"$temporary/package/bin/swiftshader.tar.br" | tar -xf - -C "$folder"
echo "VK_DRIVER_FILES=$(cd "$folder" && pwd)/vk_swiftshader_icd.json"
