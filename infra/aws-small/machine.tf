# A whole cell in one process on one machine: 'logplane serve' with its state in S3. The disk holds the keys and what no
# commit has yet. docs/run/serve.md says what its loss costs.
locals {
  objects = "${aws_s3_bucket.cell.arn}/${var.prefix}/*"
  environment = merge({
    LOGPLANE_EXTERNAL_ADDRESS = "${var.domain}:7373"
    LOGPLANE_BUCKET           = "s3://${aws_s3_bucket.cell.bucket}/${var.prefix}"
    LOGPLANE_S3_REGION        = var.region
  }, { for flag, value in var.flags : "LOGPLANE_${upper(replace(flag, "-", "_"))}" => value })
}

data "aws_ssm_parameter" "machine_image" {
  name = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-arm64"
}

data "aws_subnet" "default" {
  availability_zone = var.zone
  default_for_az    = true
}

resource "aws_security_group" "cell" {
  name        = var.name
  description = "The cell"
  vpc_id      = data.aws_subnet.default.vpc_id
}

resource "aws_vpc_security_group_ingress_rule" "clients" {
  for_each          = toset(var.clients)
  security_group_id = aws_security_group.cell.id
  description       = "Clients of the API"
  cidr_ipv4         = each.key
  ip_protocol       = "tcp"
  from_port         = 7373
  to_port           = 7373
}

resource "aws_vpc_security_group_egress_rule" "cell" {
  security_group_id = aws_security_group.cell.id
  description       = "AWS, webhooks and issuers"
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "-1"
}

resource "aws_instance" "cell" {
  ami                         = data.aws_ssm_parameter.machine_image.value
  instance_type               = var.machine
  subnet_id                   = data.aws_subnet.default.id
  vpc_security_group_ids      = [aws_security_group.cell.id]
  iam_instance_profile        = aws_iam_instance_profile.cell.name
  user_data_replace_on_change = true # a release is a new machine with the old disk
  user_data = templatefile("${path.module}/machine.sh.tftpl", {
    artifacts   = var.artifacts
    release     = var.release
    region      = var.region
    environment = join("\n", [for name, value in local.environment : "${name}=${value}"])
  })
  depends_on = [aws_iam_role_policy.cell]
  lifecycle {
    ignore_changes = [ami]
  }
  metadata_options {
    http_tokens = "required"
  }
  root_block_device {
    encrypted  = true
    kms_key_id = aws_kms_key.cell.arn
  }
  tags = { Name = var.name }
}

resource "aws_ebs_volume" "cell" {
  availability_zone = var.zone
  size              = var.disk_gib
  type              = "gp3"
  encrypted         = true
  kms_key_id        = aws_kms_key.cell.arn
  tags              = { Name = var.name }
  lifecycle {
    prevent_destroy = true
  }
}

resource "aws_volume_attachment" "cell" {
  device_name                    = "/dev/sdf"
  volume_id                      = aws_ebs_volume.cell.id
  instance_id                    = aws_instance.cell.id
  stop_instance_before_detaching = true
}

resource "aws_eip" "cell" {
  domain   = "vpc"
  instance = aws_instance.cell.id
}

resource "aws_route53_record" "cell" {
  zone_id = var.zone_id
  name    = var.domain
  type    = "A"
  ttl     = 60
  records = [aws_eip.cell.public_ip]
}

# infra/check compares this with what 'logplane serve' asks of a bucket.
data "aws_iam_policy_document" "serve" {
  statement {
    actions   = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"]
    resources = [local.objects]
  }
  statement {
    actions   = ["s3:ListBucket"]
    resources = [aws_s3_bucket.cell.arn]
  }
  statement {
    actions   = ["kms:Decrypt", "kms:GenerateDataKey"]
    resources = [aws_kms_key.cell.arn]
  }
}

data "aws_iam_policy_document" "package" {
  statement {
    actions   = ["s3:GetObject"]
    resources = ["arn:${data.aws_partition.current.partition}:s3:::${var.artifacts}/${var.release}/*"]
  }
}

resource "aws_iam_role_policy" "cell" {
  for_each = {
    serve   = data.aws_iam_policy_document.serve.json
    package = data.aws_iam_policy_document.package.json
  }
  name   = each.key
  role   = aws_iam_role.cell.id
  policy = each.value
}

# Session Manager, by which operators log in.
resource "aws_iam_role_policy_attachment" "operators" {
  role       = aws_iam_role.cell.name
  policy_arn = "arn:${data.aws_partition.current.partition}:iam::aws:policy/AmazonSSMManagedInstanceCore"
}

resource "aws_iam_role" "cell" {
  name               = var.name
  assume_role_policy = data.aws_iam_policy_document.assumed_by_machines.json
}

data "aws_iam_policy_document" "assumed_by_machines" {
  statement {
    actions = ["sts:AssumeRole"]
    principals {
      type        = "Service"
      identifiers = ["ec2.amazonaws.com"]
    }
  }
}

resource "aws_iam_instance_profile" "cell" {
  name = var.name
  role = aws_iam_role.cell.name
}

output "server" {
  description = "What a kubeconfig has as its server"
  value       = "https://${var.domain}:7373"
}

output "instance" {
  description = "Id of the machine, for 'aws ssm start-session --target'"
  value       = aws_instance.cell.id
}
